// The panel of one experiment. All state lives in the kernel (panel.py); this file only draws it and sends
// what the learner does. Native controls throughout, so keyboard and screen readers work by themselves.

function brief(count) {
  return count < 10000 ? String(count) : `${Math.floor(count / 1000)}k`;
}

function drawWall(wall) {
  const tiles = element("div", { class: "sb-tiles", role: "img", "aria-label": wall.alt });
  for (const tile of wall.tiles) {
    const node = element("span", { class: "sb-tile", style: `background:${tile.colour};color:${tile.ink}` });
    node.append(tile.letter);
    if (tile.count) node.append(element("small", { text: `×${brief(tile.count)}` }));
    tiles.append(node);
  }
  return tiles;
}

function drawVerdict(say) {
  const end = say.indexOf(":") + 1; // "Different: 17 answers …"
  return element("p", { class: "sb-say" }, element("strong", { text: say.slice(0, end) }), say.slice(end));
}

function drawRow(row) {
  const where = [row.where, row.note].filter(Boolean).join(" · ");
  const live = row.kind === "LIVE";
  return element(
    "section",
    { class: "sb-row" },
    element("p", { class: "sb-settings", text: row.title }),
    drawWall(row),
    ...(row.summary ? [drawVerdict(row.summary)] : []),
    drawVerdict(row.say),
    element(
      "p",
      { class: "sb-source" },
      element("span", { class: `sb-badge sb-badge-${row.kind.toLowerCase()}`, text: row.kind }),
      // Without its kernel nothing is live any more: the stylesheet then shows this instead of the badge.
      ...(live ? [element("span", { class: "sb-measured", text: `measured on ${row.date} · ` })] : []),
      ` ${where}`,
    ),
  );
}

function drawKnob(knob, id, model, send) {
  const help = element("span", { class: "sb-help", id: `${id}-help`, text: knob.help });
  const shared = { id, "aria-describedby": `${id}-help` };
  let input;
  if (knob.kind === "toggle") {
    input = control("input", { ...shared, type: "checkbox" });
  } else if (knob.kind === "choice") {
    input = control("select", shared, ...knob.choices.map((choice) => element("option", { value: choice, text: choice })));
  } else {
    input = control("input", { ...shared, type: "number", min: knob.low, max: knob.high, step: 1 });
  }
  const read = () => (knob.kind === "toggle" ? input.checked : input.value);
  // The kernel echoes every setting; only one that changed there may touch what the learner is typing.
  let shown;
  const show = (always = false) => {
    const value = model.get("values")[knob.name];
    if (value === shown && !always) return;
    shown = value;
    if (knob.kind === "toggle") input.checked = value;
    else input.value = value;
  };
  input.addEventListener("change", () => send({ do: "set" }));
  const label = element("label", { for: id, text: knob.label });
  if (knob.fresh) label.append(element("span", { class: "sb-fresh", text: "fresh process" }));
  return { node: element("div", { class: "sb-knob" }, label, input, help), read, show, name: knob.name };
}

function render({ model, el }) {
  // Each widget evaluates this module anew, so a counter would give every panel the same ids.
  const id = `sb-panel-${Math.random().toString(36).slice(2)}`;
  const spec = model.get("spec");

  const gather = () => ({
    values: Object.fromEntries(knobs.map((knob) => [knob.name, knob.read()])),
    repeats: repeats.value,
    until_different: until.checked,
  });
  const send = (message) => model.send({ ...message, ...gather() });

  const knobs = spec.knobs.map((knob) => drawKnob(knob, `${id}-${knob.name}`, model, send));
  const repeats = control("input", { id: `${id}-repeats`, type: "number", min: 1, max: 1000, step: 1 });
  const until = control("input", { id: `${id}-until`, type: "checkbox" });
  repeats.addEventListener("input", () => (run.textContent = `Run ${repeats.value}`));
  repeats.addEventListener("change", () => send({ do: "set" }));
  until.addEventListener("change", () => send({ do: "set" }));

  const run = control("button", { type: "button", class: "sb-button sb-primary", text: "Run" });
  const cancel = control("button", { type: "button", class: "sb-button", text: "Cancel" });
  let waiting;
  run.addEventListener("click", () => {
    send({ do: "run" });
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      status.textContent = "No reply from the kernel yet. It answers when the running cell ends.";
    }, PATIENCE_MS);
  });
  const heard = () => clearTimeout(waiting);
  model.on("change", heard);
  cancel.addEventListener("click", () => model.send({ do: "cancel" }));

  const progress = element("progress", { max: 1, value: 0, "aria-label": "Runs done" });
  const count = element("span", { class: "sb-count" });
  const status = element("p", { class: "sb-status", role: "status", "aria-live": "polite" });
  const detail = element("details", { class: "sb-detail" }, control("summary", { text: "Technical details" }), element("pre", {}));
  const rows = element("div", { class: "sb-rows" });
  const growing = element("div", { class: "sb-growing" });
  const code = element("details", { class: "sb-code" }, control("summary", { text: "Show me the code" }), element("pre", { tabindex: "0" }));

  const heading = element("p", { class: "sb-title", id: `${id}-title`, text: spec.title });
  const card = element(
    "section",
    { class: "sb-card sb-panel", "aria-labelledby": `${id}-title` },
    element("header", {}, heading, element("p", { class: "sb-question", text: spec.question })),
    element("div", { class: "sb-knobs", role: "group", "aria-label": "Settings" }, ...knobs.map((knob) => knob.node)),
    element(
      "div",
      { class: "sb-bar" },
      run,
      cancel,
      element("label", { for: repeats.id, text: "Runs" }),
      repeats,
      element("label", { for: until.id, class: "sb-until" }, until, " go on until two differ"),
      progress,
      count,
    ),
    status,
    detail,
    rows,
    growing,
    code,
  );
  el.replaceChildren(card);

  const on = (names, draw) => {
    for (const name of names) model.on(`change:${name}`, draw);
    draw();
  };
  const showRepeats = () => {
    repeats.value = model.get("repeats");
    run.textContent = `Run ${model.get("repeats")}`;
  };
  on(["values"], () => knobs.forEach((knob) => knob.show()));
  on(["repeats"], showRepeats);
  on(["until_different"], () => (until.checked = model.get("until_different")));
  model.on("msg:custom", (message) => {
    heard();
    if (message.do !== "show") return;
    knobs.forEach((knob) => knob.show(true));
    showRepeats();
  });
  on(["code"], () => (code.querySelector("pre").textContent = model.get("code")));
  on(["busy", "done", "repeats"], () => {
    const busy = model.get("busy");
    const all = model.get("repeats");
    // A disabled button would drop the focus of whoever pressed it by keyboard.
    run.setAttribute("aria-disabled", busy);
    cancel.setAttribute("aria-disabled", !busy);
    progress.hidden = count.hidden = !busy;
    progress.max = all;
    progress.value = Math.min(model.get("done"), all);
    const done = model.get("done");
    count.textContent = done <= all ? `${done} of ${all}` : `${done.toLocaleString("en")} runs, no difference yet`;
  });
  on(["status", "failed"], () => {
    status.textContent = model.get("status");
    status.classList.toggle("sb-failed", model.get("failed"));
  });
  whenKernelGoes(model, () => {
    card.classList.add("sb-gone");
    status.textContent = "The kernel was restarted. Run the cell above this panel again to use it.";
    heard();
    run.classList.remove("sb-primary");
    for (const node of card.querySelectorAll(".sb-knobs :is(input, select), .sb-bar :is(input, button)")) {
      node.disabled = true;
    }
  });
  on(["detail"], () => {
    detail.hidden = !model.get("detail");
    detail.querySelector("pre").textContent = model.get("detail");
  });
  on(["rows"], () => rows.replaceChildren(...model.get("rows").map(drawRow)));
  on(["growing"], () => growing.replaceChildren(...(model.get("growing") ? [drawWall(model.get("growing"))] : [])));
}

export default { render };
