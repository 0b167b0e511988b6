// Runs in a worker of its own: the simulated machine as WebAssembly. It is told {open} once, then {ask}; it tells
// {facts}, {answer} or {error}, each with the id of what it answers, and how long it took. While it replays, it tells
// {share} of that.

/** @type {any} */
let machine = null;

/** @param {Uint8Array} bytes */
function put(bytes) {
  const at = machine.isotherm_input(bytes.length);
  new Uint8Array(machine.memory.buffer, at, bytes.length).set(bytes);
}

/** Calls a function of the machine; gives its JSON, or fails with what it says. @param {() => number} call */
function called(call) {
  const isGood = call();
  const output = new Uint8Array(machine.memory.buffer, machine.isotherm_output(), machine.isotherm_output_bytes());
  // A copy: its memory may grow.
  const text = new TextDecoder().decode(output.slice());
  if (!isGood) throw new Error(text);
  return JSON.parse(text);
}

/** @param {any} question */
function ask(question) {
  put(new TextEncoder().encode(JSON.stringify(question)));
  return {
    prediction: called(() => machine.isotherm_predict()),
    configuration: (put(new TextEncoder().encode(JSON.stringify(question))), called(() => machine.isotherm_configuration())),
  };
}

addEventListener("message", async event => {
  const {id, open, question} = event.data, began = performance.now();
  try {
    if (open) {
      const {instance} = await WebAssembly.instantiate(open.wasm, {page: {reported: (/** @type {number} */ share) => postMessage({share})}});
      machine = instance.exports;
      put(new Uint8Array(open.record));
      postMessage({id, facts: called(() => machine.isotherm_open(open.oneIn)), took_ms: performance.now() - began});
    } else {
      postMessage({id, answer: ask(question), took_ms: performance.now() - began});
    }
  } catch (error) {
    postMessage({id, error: error instanceof Error ? error.message : String(error)});
  }
});
