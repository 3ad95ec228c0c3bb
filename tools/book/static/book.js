// What the theme leaves to be said to readers who use a keyboard or a screen reader.
addEventListener("load", async () => {
  // Its visible words name the button better than its label, which leaves the keys out.
  document.querySelectorAll(".search-button-field").forEach((button) => button.removeAttribute("aria-label"));

  const home = document.querySelector(".sidebar-primary-item:has(.navbar-brand)");
  home?.setAttribute("role", "navigation");
  home?.setAttribute("aria-label", "Home");

  // What is wider than its place scrolls, by the keys too, and book.css shows that it does. A fold that opens is measured.
  await window.MathJax?.startup?.promise;
  const measure = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    const wider = target.scrollWidth > target.clientWidth;
    target.classList.toggle("scrolls", wider);
    if (wider) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }));
  const wide = "article pre, article mjx-container[display], article .pst-scrollable-table-container";
  document.querySelectorAll(wide).forEach((one) => measure.observe(one));
});
