// Counts words over HTTP on loopback: server and client in one program.
import { createServer, request } from "node:http";
import { readFileSync } from "node:fs";

const count = (text) => {
  const seen = new Map();
  for (const word of text.toLowerCase().match(/[a-z]+/g) ?? []) {
    seen.set(word, (seen.get(word) ?? 0) + 1);
  }
  return [...seen].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
};

const server = createServer((req, res) => {
  const parts = [];
  req.on("data", (part) => parts.push(part));
  req.on("end", () => res.end(JSON.stringify(count(Buffer.concat(parts).toString()))));
});

server.listen(0, "127.0.0.1", () => {
  const req = request({ port: server.address().port, method: "POST" }, (res) => {
    const parts = [];
    res.on("data", (part) => parts.push(part));
    res.on("end", () => {
      for (const [word, n] of JSON.parse(Buffer.concat(parts)).slice(0, 3)) {
        console.log(word, n);
      }
      server.close();
    });
  });
  req.end(readFileSync(process.argv[2]));
});
