/* A virtual clock for the page, installed before any of its scripts run.
 *
 * Timers, animation frames and dates follow a clock that stands still until `advance` is called,
 * so that an episode depends neither on the speed of the machine nor on how long a player thinks.
 * While `native` is true, the real functions are used: BrowserGym's own scripts need them.
 */
(() => {
  const EPOCH_MS = Date.UTC(2020, 0, 1);
  const FRAME_MS = 16;
  const real = {
    Date,
    now: performance.now.bind(performance),
    setTimeout: setTimeout.bind(window),
    setInterval: setInterval.bind(window),
    clearTimeout: clearTimeout.bind(window),
    requestAnimationFrame: requestAnimationFrame.bind(window),
    cancelAnimationFrame: cancelAnimationFrame.bind(window),
  };
  const FIRST_ID = 1e9; // Above the ids of real timers, so that both can be cleared by id.
  const timers = new Map();
  let elapsed = 0;
  let nextId = FIRST_ID;

  const schedule = (callback, delay, repeat) => {
    const id = nextId++;
    const wait = Math.max(Number(delay) || 0, 1); // Never 0: a timer may set itself again.
    timers.set(id, { callback, due: elapsed + wait, repeat: repeat ? wait : null });
    return id;
  };
  const clear = (id) => {
    if (!timers.delete(id) && id < FIRST_ID) real.clearTimeout(id);
  };
  const bind = (callback, args) =>
    typeof callback === "function" ? () => callback(...args) : () => window.eval(String(callback));

  const clock = {
    native: false,

    /* Let `ms` milliseconds pass: run all timers that fall due, in order. */
    async advance(ms) {
      const end = elapsed + ms;
      for (;;) {
        let next = null;
        for (const [id, timer] of timers) {
          if (timer.due <= end && (next === null || timer.due < timers.get(next).due)) next = id;
        }
        if (next === null) break;
        const timer = timers.get(next);
        elapsed = Math.max(elapsed, timer.due);
        if (timer.repeat === null) timers.delete(next);
        else timer.due += timer.repeat;
        try {
          timer.callback();
        } catch (error) {
          console.error(error);
        }
        await null; // Promises that the callback resolved run before the next timer.
      }
      elapsed = end;
    },

    /* Wait until the browser has drawn what has changed. */
    waitForPaint: () =>
      new Promise((resolve) =>
        real.requestAnimationFrame(() => real.requestAnimationFrame(() => resolve()))
      ),
  };

  window.setTimeout = (callback, delay, ...args) =>
    clock.native
      ? real.setTimeout(callback, delay, ...args)
      : schedule(bind(callback, args), delay, false);
  window.setInterval = (callback, delay, ...args) =>
    clock.native
      ? real.setInterval(callback, delay, ...args)
      : schedule(bind(callback, args), delay, true);
  window.clearTimeout = window.clearInterval = clear;
  window.requestAnimationFrame = (callback) =>
    clock.native
      ? real.requestAnimationFrame(callback)
      : schedule(() => callback(elapsed), FRAME_MS, false);
  window.cancelAnimationFrame = (id) => {
    if (!timers.delete(id) && id < FIRST_ID) real.cancelAnimationFrame(id);
  };
  performance.now = () => (clock.native ? real.now() : elapsed);
  const now = () => (clock.native ? real.Date.now() : EPOCH_MS + elapsed);
  window.Date = new Proxy(real.Date, {
    construct: (target, args, newTarget) =>
      Reflect.construct(target, args.length ? args : [now()], newTarget),
    apply: () => new real.Date(now()).toString(),
    get: (target, key) => (key === "now" ? now : Reflect.get(target, key)),
  });
  // Pages draw from Math.random before they are seeded, too: xorshift, always from the same state.
  let state = 0x2545f491;
  Math.random = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
  Object.defineProperty(window, "__ludus_clock", { value: clock });
})();
