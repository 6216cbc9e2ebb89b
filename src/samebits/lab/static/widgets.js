// What the panel and the atlas share; theme.py puts it in front of either, since a widget's module is one text.

// Milliseconds without an answer, after which the learner is told that the kernel is busy.
const PATIENCE_MS = 1500;

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value;
    else if (value !== false && value !== null) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// JupyterLab's single-letter shortcuts would fire while a control has the focus ("d d" deletes the cell).
function control(name, attributes, ...children) {
  return element(name, { "data-lm-suppress-shortcuts": "true", ...attributes }, ...children);
}

// Calls `act` when the kernel that this widget belongs to is gone. JupyterLab's widget manager knows its
// session; where there is none to ask (VS Code, Colab), nothing is called.
function whenKernelGoes(model, act) {
  const changed = model.widget_manager?.context?.sessionContext?.statusChanged;
  changed?.connect((_, status) => {
    if (["restarting", "autorestarting", "terminating", "dead"].includes(status)) act();
  });
}

