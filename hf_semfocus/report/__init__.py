"""Tables, pictures and `report.html` of a comparison, made from its summary."""
