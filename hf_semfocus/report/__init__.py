"""Tables, pictures and `report.html` of a comparison, made from the files that training wrote."""
