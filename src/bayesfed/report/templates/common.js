"use strict";
// What every page does: its data, elements made without markup, and the switch of the theme.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const theme = document.getElementById("theme");
function paint() {
  if (theme.value) root.dataset.theme = theme.value; else delete root.dataset.theme;
}
theme.addEventListener("change", paint);
window.addEventListener("pageshow", paint); // a browser that comes back has kept the choice alone
