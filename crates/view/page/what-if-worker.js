// Runs the simulated machine as WebAssembly in a worker. It receives {open} once, then {ask}. It sends {facts},
// {answer} or {error}, each with the id of the request and the time it took, and {share} while it replays.

/** @type {any} */
let machine = null;

/** @param {Uint8Array} bytes */
function put(bytes) {
  const at = machine.isotherm_input(bytes.length);
  new Uint8Array(machine.memory.buffer, at, bytes.length).set(bytes);
}

/** Calls a function of the machine; returns its JSON, or throws its error. @param {() => number} call */
function called(call) {
  const isGood = call();
  const output = new Uint8Array(machine.memory.buffer, machine.isotherm_output(), machine.isotherm_output_bytes());
  // Copies, as growth of the memory invalidates views.
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
