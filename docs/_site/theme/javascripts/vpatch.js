// The theme puts each copy button into a landmark without a name: to a screen reader it is none.
const unmark = () => document.querySelectorAll(".md-code__nav:not([role])").forEach(nav => nav.setAttribute("role", "none"))
new MutationObserver(unmark).observe(document.body, {childList: true, subtree: true})
unmark()
