(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const task = document.getElementById("task");
  const boxes = all("#masks input");

  function filter() {
    const off = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    for (const element of all("[data-task], [data-mask]")) {
      const { task: own, mask } = element.dataset;
      element.classList.toggle("out", Boolean((task.value && own && own !== task.value) || (mask && off.has(mask))));
    }
  }
  if (task) {
    task.addEventListener("change", filter);
    boxes.forEach((box) => box.addEventListener("change", filter));
    for (const button of all("#masks button"))
      button.addEventListener("click", () => {
        boxes.forEach((box) => (box.checked = button.value === "all" || box.dataset.baseline !== undefined));
        filter();
      });
  }

  // A body of a table is a task and mask: its row, and the details below it.
  function sort(table, column, down) {
    const value = (body) => body.querySelector(`[data-column="${column}"]`).dataset.value;
    const bodies = [...table.tBodies];
    const numbers = bodies.every((body) => value(body) === "" || !Number.isNaN(Number(value(body))));
    bodies.sort((first, second) => {
      const [a, b] = [value(first), value(second)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return (numbers ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
    });
    table.append(...bodies);
    for (const head of all("thead th", table)) {
      const own = head.querySelector("button")?.value === column;
      own ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort");
    }
  }
  const main = document.querySelector("table.main");
  if (main) {
    for (const button of all("thead button", main))
      button.addEventListener("click", () => sort(main, button.value, button.closest("th").getAttribute("aria-sort") === "ascending"));
    document.getElementById("order").addEventListener("change", (event) => {
      const [column, way] = event.target.value.split(" ");
      sort(main, column, way === "down");
    });
    for (const button of all("button.details", main))
      button.addEventListener("click", () => {
        const more = button.closest("tbody").querySelector(".more");
        more.hidden = !more.hidden;
        button.setAttribute("aria-expanded", String(!more.hidden));
      });
  }
})();
