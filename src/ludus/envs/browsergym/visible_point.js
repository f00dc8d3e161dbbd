/* Where a user would click an element: [x, y] in the viewport. Or why it cannot be clicked.
 *
 * Scrolls to the element. The middle is preferred; another part will do if something covers it.
 */
(element) => {
  const PARTS = 8;
  if (element.matches("select:not([multiple], [size]) option")) {
    const list = element.closest("select").getAttribute("bid");
    return `it is an option; fill its list [${list}] with its name`;
  }
  if (!element.checkVisibility({ visibilityProperty: true })) return "it is hidden";
  if (element.disabled) return "it is disabled";
  element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
  const parts = [4, 5, 3, 6, 2, 7, 1].map((part) => part / PARTS);
  let covering = null;
  for (const box of element.getClientRects()) {
    for (const down of parts) {
      for (const right of parts) {
        const [x, y] = [box.x + box.width * right, box.y + box.height * down];
        const at = document.elementFromPoint(x, y);
        if (!at) continue;
        if (element.contains(at)) return [x, y];
        const label = at.closest("label");
        if (label && label.control === element) return [x, y];
        covering = covering || at.closest("[bid]");
      }
    }
  }
  if (!covering) return "it lies outside of the page or has no size";
  return `element [${covering.getAttribute("bid")}] covers it`;
}
