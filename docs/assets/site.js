// Wide tables and code scroll by themselves: let the keyboard reach them.
document$.subscribe(() => {
  const scrolling = ".md-typeset__scrollwrap, .md-typeset pre > code";
  document.querySelectorAll(scrolling).forEach((one) => one.setAttribute("tabindex", "0"));
});
