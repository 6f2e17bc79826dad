// SPDX-License-Identifier: Apache-2.0
// Returns the titles of the charts whose labels of the time overlap.

const isOfTime = (label) => label.textContent === "now" || label.textContent.endsWith(" ago");

function overlaps(card) {
  const labels = [...card.querySelectorAll("svg text")].filter(isOfTime);
  const boxes = labels.map((label) => label.getBoundingClientRect()).sort((a, b) => a.left - b.left);
  return boxes.some((box, at) => at && box.left < boxes[at - 1].right);
}

const cards = [...document.querySelectorAll(".chart-card:not([hidden])")];
return cards.filter(overlaps).map((card) => card.querySelector("h3").textContent);
