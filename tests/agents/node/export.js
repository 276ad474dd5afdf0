// Exports spans with difficult values through one of OpenTelemetry's exporters: node export.js http|proto|grpc URL
// Prints what it sent, one span a line.
"use strict";
const { SpanKind, SpanStatusCode, trace, context } = require("@opentelemetry/api");
const { NodeTracerProvider, BatchSpanProcessor } = require("@opentelemetry/sdk-trace-node");

const [, , protocol, url, count = "1"] = process.argv;
const { OTLPTraceExporter } = require(`@opentelemetry/exporter-trace-otlp-${protocol}`);

const VALUES = {
  empty: "",
  text: "naïve 漢字 🙂 \u2028 \"quoted\" \\ \t\r\n",
  nul: "before\u0000after",
  "half an emoji": "x\ud83dy",
  long: "ü".repeat(500_000),
  json: JSON.stringify({ n: 1.0, deep: [[[{}]]] }),
  yes: true,
  no: false,
  zero: 0,
  negative: -7,
  largest: Number.MAX_SAFE_INTEGER,
  smallest: Number.MIN_SAFE_INTEGER,
  fraction: 0.1,
  huge: 1.7976931348623157e308,
  tiny: 5e-324,
  nan: NaN,
  inf: Infinity,
  texts: ["a", "", "🙂"],
  numbers: [1, 2, 3],
  fractions: [0.5, -0.25],
  flags: [true, false],
  "empty list": [],
  "a.key/with:odd characters €": "v",
};

// JSON has no NaN and no infinity; these are Python's names of them
const plain = (_, value) => (Number.isNaN(value) ? "nan" : value === Infinity ? "inf" : value);
const seconds = ([whole, nanos]) => `${whole}${String(nanos).padStart(9, "0")}`;

class Told {
  export(spans, done) {
    for (const span of spans) {
      const told = {
        trace: span.spanContext().traceId,
        id: span.spanContext().spanId,
        parent: span.parentSpanContext?.spanId ?? "",
        name: span.name,
        kind: span.kind + 1,
        start: seconds(span.startTime),
        end: seconds(span.endTime),
        attributes: span.attributes,
        events: span.events.map((e) => ({ name: e.name, time: seconds(e.time), attributes: e.attributes ?? {} })),
        links: span.links.map((l) => ({ trace: l.context.traceId, id: l.context.spanId, attributes: l.attributes ?? {} })),
        status: span.status,
        scope: span.instrumentationScope.name,
      };
      process.stdout.write(JSON.stringify(told, plain) + "\n");
    }
    done({ code: 0 });
  }
  async shutdown() {}
}

async function main() {
  const provider = new NodeTracerProvider({
    spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter({ url })), new BatchSpanProcessor(new Told())],
  });
  const tracer = provider.getTracer("scope 🙂", "1.0");
  const root = tracer.startSpan("root", { kind: SpanKind.SERVER });
  for (let n = 0; n < Number(count); n++) {
    const span = tracer.startSpan(
      `call ${n} 🙂`,
      { kind: SpanKind.CLIENT, attributes: VALUES, links: [{ context: root.spanContext(), attributes: { why: "test" } }] },
      trace.setSpan(context.active(), root),
    );
    span.addEvent("event\u0000", { value: 2.5 });
    span.setStatus({ code: SpanStatusCode.ERROR, message: "it failed: ✗" });
    span.end();
  }
  root.end();
  await provider.shutdown();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
