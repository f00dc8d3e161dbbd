/* Why an element cannot be clicked as a user would do it; empty where it can. Scrolls to it. */
(element) => {
  if (!element.checkVisibility({ visibilityProperty: true })) return "it is hidden";
  if (element.disabled) return "it is disabled";
  element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
  const box = element.getClientRects()[0];
  if (!box || !box.width || !box.height) return "it has no size";
  const at = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  if (!at) return "it lies outside of the page";
  const label = at.closest("label");
  const hits = element.contains(at) || (label && label.control === element);
  if (hits) return "";
  const marked = at.closest("[bid]");
  return marked ? `element [${marked.getAttribute("bid")}] covers it` : "something covers it";
}
