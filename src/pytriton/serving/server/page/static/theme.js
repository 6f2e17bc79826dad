// SPDX-License-Identifier: Apache-2.0
// Runs before the first paint, so that a dark page does not flash white.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is off: the system's colours are used */ }
