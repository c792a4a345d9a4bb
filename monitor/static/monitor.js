// Requests the page again every two seconds and replaces only its changing parts (data-live), so
// that scroll positions, typed text and open sections stay. A hidden page requests nothing.
"use strict";

const EVERY_MS = 2000;
const state = document.getElementById("state");
let asking = false;

function exchange(fresh) {
  for (const now of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${now.dataset.live}"]`);
    if (!next || now.outerHTML === next.outerHTML) continue;
    const selection = getSelection();
    if (!selection.isCollapsed && now.contains(selection.anchorNode)) continue;
    const focused = now.contains(document.activeElement) ? document.activeElement : null;
    const address = focused && focused.getAttribute("href");
    const left = now.scrollLeft;
    now.innerHTML = next.innerHTML;
    now.scrollLeft = left;
    if (address) {
      const again = [...now.querySelectorAll("a[href]")].find(
        (link) => link.getAttribute("href") === address);
      if (again) again.focus({ preventScroll: true });
    }
  }
}

async function refresh() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { redirect: "manual" });
    if (answer.type === "opaqueredirect") location.reload();
    exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
    document.body.classList.remove("away");
    state.textContent = "";
  } catch {
    document.body.classList.add("away");
    state.textContent = "The page's server does not answer: the data shown is old.";
  } finally {
    asking = false;
  }
}

if (document.querySelector("[data-live]")) setInterval(refresh, EVERY_MS);
document.addEventListener("visibilitychange", refresh);

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  const search = document.getElementById("search");
  if (event.key === "/" && !typing && search) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.ask;
  if (question && !confirm(question)) event.preventDefault();
});
