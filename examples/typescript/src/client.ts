// A client that starts orders and waits until all have ended: npm run client -- 5
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type Client, createClient } from "@connectrpc/connect";

import { connect } from "./connection.js";
import { type Instance, InstanceService, InstanceState } from "./gen/wiggle/v1/instance_service_pb.js";
import type { Order } from "./order.js";
import { decode, encode } from "./payload.js";
import { retry } from "./retry.js";
import { newUlid } from "./ulid.js";

type Instances = Client<typeof InstanceService>;

const customers = ["Ada Lovelace", "Alan Turing", "Grace Hopper", "Radia Perlman"];
const articles = ["tea", "coffee", "mug", "pen"];
const waitMs = 30_000;

function sampleOrder(i: number): Order {
  return {
    customer: { name: customers[i % customers.length]!, city: "London" },
    lines: [{ sku: articles[i % articles.length]!, quantity: 1 + (i % 3) }],
  };
}

/** start starts all orders in one call. Each has its own ulid: when the call is repeated, nothing is started twice. */
async function start(instances: Instances, orders: Order[], stop: AbortSignal): Promise<string[]> {
  const starts = orders.map((order) => ({ workflow: "order-fulfilment", ulid: newUlid(), input: encode(order) }));
  const { outcomes } = await retry(stop, () => instances.startInstances({ starts }, { signal: stop }));
  return outcomes.map(({ outcome }, i) => {
    if (outcome.case !== "started") {
      throw new Error(`order ${i + 1} was not started: ${outcome.value?.message}`);
    }
    return outcome.value.instanceId;
  });
}

/** ended waits for an instance's end, which may take longer than one call may wait. */
async function ended(instances: Instances, instanceId: string, stop: AbortSignal): Promise<Instance> {
  for (;;) {
    const answer = await retry(stop, () =>
      instances.waitInstance({ instanceId, wait: durationFromMs(waitMs) }, { signal: stop, timeoutMs: 2 * waitMs }));
    if (answer.ended && answer.instance) {
      return answer.instance;
    }
  }
}

function describe(instance: Instance): string {
  if (instance.state !== InstanceState.COMPLETED) {
    return `${instance.id} ${InstanceState[instance.state]} ${instance.failure?.message ?? ""}`;
  }
  const order = decode(instance.context) as Order;
  return `${instance.id} COMPLETED ${order.customer.name} ${order.total_cents} ${order.shipment?.tracking}`;
}

const count = Number(process.argv[2] ?? 3);
if (!Number.isInteger(count) || count < 1 || count > 1000) {
  console.error("say how many orders, 1 to 1000: npm run client -- 5");
  process.exit(2);
}
const stop = new AbortController();
process.once("SIGINT", () => stop.abort());
const connection = connect();
try {
  const instances = createClient(InstanceService, connection.transport);
  const ids = await start(instances, Array.from({ length: count }, (_, i) => sampleOrder(i)), stop.signal);
  const all = await Promise.all(ids.map((id) => ended(instances, id, stop.signal)));
  all.forEach((instance) => console.log(describe(instance)));
  process.exitCode = all.every((instance) => instance.state === InstanceState.COMPLETED) ? 0 : 1;
} finally {
  connection.close();
}
