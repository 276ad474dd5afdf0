// A client of spanreplay.v1 made of replay.proto, without any code of spanreplay
"use strict";
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const OPTIONS = { keepCase: true, longs: String, enums: String, defaults: true, oneofs: true };

class Service {
  #clients = {};
  constructor(proto, endpoint, options = {}) {
    const { v1 } = grpc.loadPackageDefinition(protoLoader.loadSync(proto, { ...OPTIONS, ...options })).spanreplay;
    for (const name of ["Replay", "Runs"]) this.#clients[name] = new v1[name](endpoint, grpc.credentials.createInsecure());
  }
  // All messages of the answer to a request; `method` as in "Replay/ReplayRun"
  call(method, request) {
    const [service, name] = method.split("/");
    const client = this.#clients[service];
    if (!client[name].responseStream) {
      return new Promise((done, failed) => client[name](request, (error, message) => (error ? failed(error) : done([message]))));
    }
    return new Promise((done, failed) => {
      const messages = [];
      client[name](request)
        .on("data", (message) => messages.push(message))
        .on("error", failed)
        .on("end", () => done(messages));
    });
  }
  // The calls of a run, once the service has said that they are all
  async load(runId) {
    const messages = await this.call("Replay/ReplayRun", { run_id: runId });
    const calls = messages.flatMap((message) => message.batch?.calls ?? []);
    const end = messages.at(-1)?.end;
    if (messages[0]?.event !== "manifest" || Number(end?.calls) !== calls.length) throw new Error("the run is not whole");
    return { run: messages[0].manifest, calls };
  }
  close() {
    for (const client of Object.values(this.#clients)) client.close();
  }
}

module.exports = { Service };
