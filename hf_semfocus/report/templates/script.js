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

  // A byte a weight: rows, layers, heads, queries, keys, a mask each.
  function slider(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const range = figure.querySelector("input");
    const most = (axis) => Math.max(...data.masks.map((one) => one.shape[axis]));
    const pick = { row: most(0), layer: most(1), head: most(2) };
    for (const [name, count] of Object.entries(pick)) {
      const select = figure.querySelector(`select.${name}`);
      for (let index = 0; index < count; index++) select.add(new Option(String(index + 1), String(index)));
      select.closest("label").hidden = count === 1;
      select.addEventListener("change", draw);
    }
    const stops = [...new Set(data.masks.flatMap((one) => Object.keys(one.epochs).map(Number)))].sort((a, b) => a - b);
    range.max = String(stops.length - 1);
    range.addEventListener("input", draw);
    const bytes = new Map(); // decoded once
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);

    function weights(one, epoch) {
      const key = `${one.mask} ${epoch}`;
      if (!bytes.has(key)) bytes.set(key, Uint8Array.from(atob(one.epochs[epoch]), (letter) => letter.charCodeAt(0)));
      return bytes.get(key);
    }

    function draw() {
      const [row, layer, head] = Object.keys(pick).map((name) => Number(figure.querySelector(`select.${name}`).value));
      const now = stops[Number(range.value)];
      figure.querySelector("output").textContent = String(now);
      figure.querySelector(".tokens").textContent = data.tokens[row].join(" ");
      for (const one of data.masks) {
        const [, layers, heads, queries, keys] = one.shape;
        const place = all("[data-mask]", figure).find((element) => element.dataset.mask === one.mask);
        const canvas = place.querySelector("canvas");
        canvas.hidden = layer >= layers || head >= heads;
        if (canvas.hidden) {
          place.querySelector(".said").textContent = layer >= layers ? `no layer ${layer + 1}` : `no head ${head + 1}`;
          continue;
        }
        const start = ((row * layers + layer) * heads + head) * queries * keys;
        const epoch = Math.max(...Object.keys(one.epochs).map(Number).filter((stored) => stored <= now));
        const accuracy = one.accuracy[epoch];
        place.querySelector(".said").textContent =
          `epoch ${epoch}` + (accuracy == null ? "" : `, training ${accuracy.toFixed(2)}`) + (now > one.ended ? " (ended)" : "");
        [canvas.width, canvas.height] = [keys, queries];
        const image = new ImageData(keys, queries);
        const values = weights(one, epoch).subarray(start, start + queries * keys);
        values.forEach((value, index) => {
          const share = Math.sqrt(value / 255); // an even row of 40 keys is still seen
          const [from, to] = dark.matches ? [[22, 26, 31], [122, 184, 255]] : [[255, 255, 255], [11, 92, 173]];
          for (let part = 0; part < 3; part++) image.data[4 * index + part] = from[part] + share * (to[part] - from[part]);
          image.data[4 * index + 3] = 255;
        });
        canvas.getContext("2d").putImageData(image, 0, 0);
      }
    }
    draw();
  }
  all("figure.slider").forEach(slider);
})();
