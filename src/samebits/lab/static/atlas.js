// The op atlas. The kernel measures and owns every row (atlas.py); this file draws the table, and filters it
// here, where no kernel is needed. Native controls throughout, so keyboard and screen readers work.

const BADGES = {
  agrees: ["agrees", "sb-good"],
  wrong: ["wrong", "sb-bad"],
  missing: ["missing", "sb-bad"],
  "cannot be read": ["cannot be read", "sb-warn"],
};

// The first runs as little tiles; the count beside them says the same in words.
function drawStrip(numbers, colours) {
  const strip = element("span", { class: "sb-strip", "aria-hidden": "true" });
  for (const number of numbers) strip.append(element("i", { style: `background:${colours[Number(number)]}` }));
  return strip;
}

function drawRuns(words, strip, varies, colours) {
  const count = element(varies ? "strong" : "span", { text: words });
  return element("td", {}, count, ...(strip ? [drawStrip(strip, colours)] : []));
}

// A long name breaks after its underscores.
function drawKernel(name) {
  const parts = name.split("_").flatMap((part, i) => (i ? ["_", element("wbr"), part] : [part]));
  return element("code", {}, ...parts);
}

function drawDocumentation(row) {
  const cell = element("td", {}, row.listed);
  const [word, look] = BADGES[row.agreement] || [];
  if (word) cell.append(" ", element("span", { class: `sb-mark ${look}`, text: word }));
  return cell;
}

function drawDetail(row) {
  const lines = [
    element("p", {}, element("code", { text: row.line })),
    ...row.verdicts.map((text) => element("p", { text })),
    ...(row.says ? [element("p", { text: row.agreement === "missing" ? row.says : `The documentation: ${row.says}` })] : []),
    ...row.quoted.map((text) => element("p", { class: "sb-quoted", text: `“${text}”` })),
    ...(row.advice ? [element("p", {}, element("strong", { text: row.advice }))] : []),
  ];
  return element("td", { colspan: 5 }, ...lines);
}

// One op: its row, and a second one with everything, which its button opens.
function drawOp(row, id, colours) {
  const button = control("button", { type: "button", class: "sb-open", "aria-expanded": "false", "aria-controls": id, text: row.op });
  const detail = element("tr", { id, class: "sb-detail-row", hidden: true }, drawDetail(row));
  button.addEventListener("click", () => {
    detail.hidden = !detail.hidden;
    button.setAttribute("aria-expanded", String(!detail.hidden));
  });
  const name = element("th", { scope: "row" }, button);
  const cells = row.failed
    ? [element("td", { colspan: 4, class: "sb-failed", text: row.failed })]
    : [
        drawRuns(row.without, row.strip, row.varies[0], colours),
        row.kernel
          ? element("td", {}, element("strong", { text: "raises" }), element("br"), drawKernel(row.kernel))
          : drawRuns(row.under, row.strip_under, row.varies[1], colours),
        element("td", { class: "sb-short", text: row.price }),
        drawDocumentation(row),
      ];
  const words = [row.op, row.group, row.line, row.kernel, row.listed, row.agreement].join(" ").toLowerCase();
  return { line: element("tr", {}, name, ...cells), detail, row, words };
}

function render({ model, el }) {
  const id = `sb-atlas-${Math.random().toString(36).slice(2)}`;
  const total = model.get("total");

  const run = control("button", { type: "button", class: "sb-button sb-primary", text: `Measure ${total} ops` });
  const cancel = control("button", { type: "button", class: "sb-button", text: "Cancel" });
  const progress = element("progress", { max: total, value: 0, "aria-label": "Ops measured" });
  const count = element("span", { class: "sb-count" });
  const status = element("p", { class: "sb-status", role: "status", "aria-live": "polite" });
  const detail = element("details", { class: "sb-detail" }, control("summary", { text: "Technical details" }), element("pre", {}));
  const summary = element("p", { class: "sb-say" });
  const source = element("p", { class: "sb-source" });
  const heard = () => clearTimeout(waiting);
  let waiting;
  run.addEventListener("click", () => {
    model.send({ do: "run" });
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      status.textContent = "No reply from the kernel yet. It answers when the running cell ends.";
    }, PATIENCE_MS);
  });
  cancel.addEventListener("click", () => model.send({ do: "cancel" }));
  model.on("change", heard);

  const text = control("input", { type: "search", id: `${id}-text`, placeholder: "name or kernel" });
  const group = control("select", { id: `${id}-group` });
  const only = control("input", { type: "checkbox", id: `${id}-only` });
  const shown = element("span", { class: "sb-count", role: "status", "aria-live": "polite" });
  const head = ["Op", "Without the flag", "Under the flag", "Price", "Documentation"];
  const table = element(
    "table",
    {},
    element("caption", { text: "Different answers of how many runs, for each op; price: time under the flag over time without" }),
    element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col", text: name })))),
  );
  // A scrolling region must be reachable by keyboard.
  const scroll = control("div", { class: "sb-scroll", tabindex: "0", role: "region", "aria-label": "Table of ops" }, table);
  const filters = element(
    "div",
    { class: "sb-bar sb-filters", role: "group", "aria-label": "What the table shows" },
    element("label", { for: text.id, text: "Find" }),
    text,
    element("label", { for: group.id, text: "Group" }),
    group,
    element("label", { for: only.id, class: "sb-until" }, only, " only what varies, raises, or is documented wrongly"),
    shown,
  );
  const advice = element("div", { class: "sb-advice" });
  const card = element(
    "section",
    { class: "sb-card sb-atlas", "aria-labelledby": `${id}-title` },
    element(
      "header",
      {},
      element("p", { class: "sb-title", id: `${id}-title`, text: "The op atlas" }),
      element("p", { class: "sb-question", text: "Which ops vary here, what does the flag do about it, and does the documentation say so?" }),
    ),
    element("div", { class: "sb-bar" }, run, cancel, progress, count),
    status,
    detail,
    element("div", { class: "sb-words" }, summary, source),
    filters,
    scroll,
    advice,
  );
  el.replaceChildren(card);

  let ops = []; // what drawOp gave, for each row that is drawn
  let bodies = new Map();
  function filter() {
    const wanted = text.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    let visible = 0;
    for (const op of ops) {
      const fits =
        wanted.every((word) => op.words.includes(word)) &&
        (!group.value || op.row.group === group.value) &&
        (!only.checked || op.row.interesting);
      op.line.hidden = !fits;
      if (!fits) {
        op.detail.hidden = true;
        op.line.querySelector("button").setAttribute("aria-expanded", "false");
      }
      visible += fits;
    }
    for (const [name, body] of bodies) body.hidden = !ops.some((op) => op.row.group === name && !op.line.hidden);
    shown.textContent = ops.length ? `${visible} of ${ops.length} ops shown` : "";
  }
  [text, group, only].forEach((node) => node.addEventListener("input", filter));

  // Rows are only added, so that what is open and what has the focus stays.
  function drawRows() {
    const rows = model.get("rows");
    if (rows.length < ops.length || ops.some((op, i) => op.row.op !== rows[i].op)) {
      ops = [];
      bodies.forEach((body) => body.remove());
      bodies = new Map();
    }
    for (const row of rows.slice(ops.length)) {
      if (!bodies.has(row.group)) {
        const body = element("tbody", {}, element("tr", {}, element("th", { scope: "rowgroup", colspan: 5, text: row.group })));
        bodies.set(row.group, body);
        table.append(body);
      }
      const op = drawOp(row, `${id}-${row.op}`, model.get("colours"));
      bodies.get(row.group).append(op.line, op.detail);
      ops.push(op);
    }
    const chosen = group.value;
    group.replaceChildren(
      element("option", { value: "", text: "all" }),
      ...[...bodies.keys()].map((name) => element("option", { value: name, text: name })),
    );
    group.value = bodies.has(chosen) ? chosen : "";
    filters.hidden = scroll.hidden = !rows.length;
    filter();
  }

  function drawAdvice() {
    const groups = model.get("advice");
    const item = ({ advice: what, ops: names }) =>
      element("li", {}, element("strong", { text: what }), " ", element("span", { class: "sb-names", text: names.join(", ") }));
    const idle = groups.filter(({ advice: what }) => what.startsWith("Nothing"));
    const work = groups.filter(({ advice: what }) => !what.startsWith("Nothing"));
    advice.hidden = !groups.length;
    advice.replaceChildren(
      element("p", { class: "sb-title", text: "What to do" }),
      element("ul", {}, ...work.map(item)),
      ...(idle.length
        ? [
            element(
              "details",
              {},
              control("summary", { text: `Nothing to do here: ${idle.flatMap(({ ops: names }) => names).length} of ${total} ops` }),
              element("ul", {}, ...idle.map(item)),
            ),
          ]
        : []),
    );
  }

  const on = (names, draw) => {
    for (const name of names) model.on(`change:${name}`, draw);
    draw();
  };
  on(["busy", "done", "current"], () => {
    const busy = model.get("busy");
    // A disabled button would drop the focus of whoever pressed it by keyboard.
    run.setAttribute("aria-disabled", busy);
    cancel.setAttribute("aria-disabled", !busy);
    progress.hidden = count.hidden = !busy;
    progress.value = model.get("done");
    count.textContent = `${model.get("done")} of ${total}${model.get("current") ? `: ${model.get("current")}` : ""}`;
  });
  on(["status", "failed"], () => {
    status.textContent = model.get("status");
    status.classList.toggle("sb-failed", model.get("failed"));
  });
  on(["detail"], () => {
    detail.hidden = !model.get("detail");
    detail.querySelector("pre").textContent = model.get("detail");
  });
  on(["summary"], () => (summary.textContent = model.get("summary")));
  on(["source"], () => {
    const { kind, where, date } = model.get("source");
    if (!kind) return source.replaceChildren();
    source.replaceChildren(
      element("span", { class: `sb-badge sb-badge-${kind.toLowerCase()}`, text: kind }),
      element("span", { class: "sb-measured", text: `measured on ${date} · ` }),
      where,
    );
  });
  on(["rows"], drawRows);
  on(["advice"], drawAdvice);
  whenKernelGoes(model, () => {
    card.classList.add("sb-gone");
    status.textContent = "The kernel was restarted. Run the cell above this panel again to use it.";
    heard();
    run.classList.remove("sb-primary");
    for (const node of [run, cancel]) node.disabled = true; // what was found can still be read and filtered
  });
}

export default { render };
