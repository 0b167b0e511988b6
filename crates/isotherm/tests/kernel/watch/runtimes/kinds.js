// Has 24 MiB of a buffer, and uses 8 MiB of it: see ../kinds.py.
const memory = Buffer.alloc(24 << 20);
for (let at = 0; at < memory.length; at += 4096) memory[at] = at >> 12;
console.log(`ready ${process.pid} - 8 16 -`);
let sum = 0;
setInterval(() => {
  for (let at = 0; at < 8 << 20; at += 4096) sum += memory[at];
}, 20);
