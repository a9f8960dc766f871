// A worker that prints the labels of parcels: one step of the process order-fulfilment, whose other steps a worker in Go
// does. Run it until Ctrl-C: npm run worker
import { hostname } from "node:os";

import { connect } from "./connection.js";
import type { Task } from "./gen/wiggle/v1/worker_service_pb.js";
import type { Order, Shipment } from "./order.js";
import { decode } from "./payload.js";
import { Refused, Runner } from "./runner.js";

/** label gets what the branch `shipping` has made so far, and the order from before the fork as the base context. */
async function label(task: Task): Promise<Shipment> {
  const shipment = decode(task.context) as Shipment;
  const order = decode(task.baseContext) as Order;
  if (!shipment?.warehouse || !order?.number) {
    throw new Refused("the shipment has no warehouse, or the order no number");
  }
  return { ...shipment, tracking: `${shipment.warehouse.charAt(0).toUpperCase()}-${order.number}-${shipment.parcels}` };
}

const connection = connect();
const runner = new Runner(connection.transport, {
  name: `typescript-${hostname()}-${process.pid}`,
  queue: "typescript",
  workflow: "order-fulfilment",
  handlers: { label },
  concurrency: 16,
  leaseMs: 30_000,
  graceMs: 10_000,
});

// A second signal finds no handler and ends the process at once.
const stop = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => stop.abort());
}
console.log("serving the step label; Ctrl-C stops it");
try {
  await runner.run(stop.signal);
} finally {
  connection.close();
}
