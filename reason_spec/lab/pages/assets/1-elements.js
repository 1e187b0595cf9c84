"use strict";
// Elements, number formats and the tooltip. Texts of models only ever become text nodes.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
let data = null;

function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

async function readData() {
  const bytes = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function short(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

function seconds(value) {
  if (value === null) return "–";
  return value < 1 ? `${short(value * 1000)} ms` : `${short(value)} s`;
}

function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

// Shows `content()`, a list of nodes, while a node is pointed at or has the focus.
const tip = document.getElementById("tip");
let shownAt = 0;

function explain(node, content) {
  const show = (x, y) => {
    shownAt = window.scrollY;
    tip.replaceChildren(...content().filter(Boolean));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(12, Math.min(x + 14, window.innerWidth - box.width - 12))}px`;
    tip.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  };
  node.addEventListener("pointermove", (event) => show(event.clientX, event.clientY));
  node.addEventListener("pointerleave", hideTip);
  node.addEventListener("focus", () => {
    if (!node.matches(":focus-visible")) return;
    const box = node.getBoundingClientRect();
    show(box.left, box.bottom - 10);
  });
  node.addEventListener("blur", hideTip);
  return node;
}

function hideTip() {
  tip.hidden = true;
}

// A scroll event may arrive after the scroll has moved the pointer here and the tooltip is shown.
window.addEventListener("scroll", () => { if (window.scrollY !== shownAt) hideTip(); }, { passive: true });
