// What the theme leaves to be said to readers who use a keyboard or a screen reader.
addEventListener("load", async () => {
  // Its visible words name the button better than its label, which leaves the keys out.
  document.querySelectorAll(".search-button-field").forEach((button) => button.removeAttribute("aria-label"));

  const home = document.querySelector(".sidebar-primary-item:has(.navbar-brand)");
  home?.setAttribute("role", "navigation");
  home?.setAttribute("aria-label", "Home");

  // A formula that is wider than the page scrolls, by the keys too.
  await window.MathJax?.startup?.promise;
  document.querySelectorAll("mjx-container[display]").forEach((formula) => {
    if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
  });
});
