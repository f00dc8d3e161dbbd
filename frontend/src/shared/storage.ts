/**
 * The storage of the browser, which pages in a frame of another site may not use: then a value lasts
 * as long as the page.
 */
export class StoredValue {
  private fallback: string | null = null;

  constructor(
    private readonly area: "localStorage" | "sessionStorage",
    private readonly key: string,
  ) {}

  read(): string | null {
    try {
      return window[this.area].getItem(this.key);
    } catch {
      return this.fallback;
    }
  }

  write(value: string): void {
    this.fallback = value;
    try {
      window[this.area].setItem(this.key, value);
    } catch {
      // The fallback has it.
    }
  }
}
