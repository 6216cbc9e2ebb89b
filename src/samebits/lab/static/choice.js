// One card of single-choice questions: a prediction, or a quiz.
//
// The kernel owns every answer. The browser knows prompts and options, sends which option was chosen and
// shows the sentence that comes back; what is correct never arrives before it was answered.
//
// `answers` is written by the kernel only, and a choice travels inside the message that commits it: a
// custom message may overtake a throttled trait update, and the kernel would then judge the previous choice.

const PATIENCE_MS = 1500;

function element(name, className = "", ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

// Text with `code` between backticks, as text nodes: nothing from a question is ever parsed as HTML.
function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? element("code", "", part) : part));
}

// JupyterLab's command-mode shortcuts (`d d` deletes the cell) fire while a control has the focus, unless
// the control itself, not a parent, carries this attribute.
function control(name) {
  const node = document.createElement(name);
  node.setAttribute("data-lm-suppress-shortcuts", "true");
  return node;
}

function status() {
  const node = element("div");
  node.setAttribute("role", "status");
  node.setAttribute("aria-live", "polite");
  return node;
}

function say(node, { mark = "", text = "", tone = "" }) {
  node.dataset.tone = tone;
  const strong = mark ? [element("strong", "", ...prose(mark)), " "] : [];
  node.replaceChildren(...strong, ...prose(text));
}

function question({ kicker, prompt, options }, send) {
  const group = `sb-${Math.random().toString(36).slice(2)}`;
  const legend = element("legend", "", element("span", "sb-kicker", kicker));
  for (const paragraph of prompt) legend.append(element("span", "sb-paragraph", ...prose(paragraph)));
  const fieldset = element("fieldset", "", legend);

  const rows = options.map((text, i) => {
    const radio = control("input");
    radio.type = "radio";
    radio.name = group;
    radio.value = String(i);
    const row = element("label", "sb-option", radio, element("span", "", ...prose(text)));
    fieldset.append(row);
    return { row, radio };
  });
  const button = control("button");
  button.type = "button";
  button.className = "sb-button";
  const reply = status();
  fieldset.append(button, reply);

  let waiting;
  button.addEventListener("click", () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    send(rows.findIndex(({ radio }) => radio.checked));
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      say(reply, {
        text: "No reply from the kernel yet. It answers when the running cell ends; after a restart, run this cell again.",
      });
    }, PATIENCE_MS);
  });

  let shown;
  return {
    fieldset,
    heard() {
      clearTimeout(waiting);
      shown = undefined;
    },
    show(answer) {
      if (JSON.stringify(answer) === shown) return; // another question of this card was answered
      shown = JSON.stringify(answer);
      const hadFocus = rows.some(({ radio }) => radio === document.activeElement);
      rows.forEach(({ row, radio }, i) => {
        radio.checked = answer.chosen < 0 ? radio.checked : i === answer.chosen;
        radio.disabled = answer.locked;
        row.toggleAttribute("data-locked", answer.locked);
      });
      button.textContent = answer.button;
      button.classList.toggle("sb-primary", !answer.quiet);
      // Not `disabled`: the focus would fall out of the card, back among the notebook's shortcuts.
      button.setAttribute("aria-disabled", String(answer.locked));
      if (answer.locked && hadFocus) button.focus();
      say(reply, answer);
    },
  };
}

function render({ model, el }) {
  const heading = model.get("heading");
  const card = element(heading ? "section" : "div", "sb-card sb-choice");
  if (heading) {
    card.setAttribute("aria-label", heading);
    card.append(element("h3", "", heading), element("p", "sb-note", model.get("note")));
  }
  const questions = model.get("questions").map((data, i) =>
    question(data, (option) => model.send({ type: "choose", question: i, option })),
  );
  card.append(...questions.map(({ fieldset }) => fieldset));
  const summary = status();
  card.append(summary);

  function show() {
    model.get("answers").forEach((answer, i) => questions[i].show(answer));
    say(summary, model.get("summary"));
  }
  // The kernel confirms every choice, also one that changes nothing, such as asking for the same twice.
  function heard({ heard: question }) {
    questions[question].heard();
    show();
  }
  model.on("change:answers", show);
  model.on("change:summary", show);
  model.on("msg:custom", heard);
  show();
  el.append(card);
  return () => {
    model.off("change:answers", show);
    model.off("change:summary", show);
    model.off("msg:custom", heard);
  };
}

export default { render };
