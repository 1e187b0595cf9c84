"use strict";
// Elements, scales and the tooltip. Texts of models only ever become text nodes.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const data = JSON.parse(document.getElementById("data").textContent);

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

function linear(from, to, low, high) {
  const span = to - from || 1;
  return (value) => low + ((value - from) / span) * (high - low);
}

function logarithmic(from, to, low, high) {
  const inner = linear(Math.log(from), Math.log(to), low, high);
  return (value) => inner(Math.log(value));
}

// Round numbers between two values, about `count` of them.
function ticks(from, to, count = 5) {
  const rough = (to - from || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let place = Math.ceil(from / step - 1e-9); place * step <= to + step * 1e-6; place += 1) found.push(place * step);
  return found;
}

function logTicks(from, to) {
  const found = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1) {
    for (const factor of [1, 2, 5]) {
      const value = factor * 10 ** power;
      if (value >= from * 0.999 && value <= to * 1.001) found.push(value);
    }
  }
  return found.length > 1 ? found : ticks(from, to);
}

function isNumber(value) {
  return typeof value === "number";
}

function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return value.toFixed(0);
  return String(Number(value.toPrecision(3)));
}

function seconds(value) {
  if (value === null) return "–";
  return value < 1 ? `${short(value * 1000)} ms` : `${short(value)} s`;
}

function share(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

// What is pointed at or has the focus explains itself; `content` returns nodes.
const tip = document.getElementById("tip");
let shownAt = 0;

function explain(node, content) {
  const show = (x, y) => {
    shownAt = window.scrollY;
    tip.replaceChildren(...content());
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

// The end of a scroll that brought the pointer here may be told of after the tooltip was shown.
window.addEventListener("scroll", () => { if (window.scrollY !== shownAt) hideTip(); }, { passive: true });
