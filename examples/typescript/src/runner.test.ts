import assert from "node:assert/strict";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";

import {
  BeatOutcomeSchema,
  type FailTaskRequest,
  type HeartbeatRequest,
  type ReleaseTasksRequest,
  type ReportStepsRequest,
  TaskSchema,
  WorkerService,
} from "./gen/wiggle/v1/worker_service_pb.js";
import { decode, encode } from "./payload.js";
import { type Handler, Refused, Runner } from "./runner.js";

/** Server hands out one task and notes what comes back. */
class Server {
  readonly reports: ReportStepsRequest[] = [];
  readonly failures: FailTaskRequest[] = [];
  readonly releases: ReleaseTasksRequest[] = [];
  beats = 0;
  /** Called for each. */
  onBeat: (request: HeartbeatRequest) => void = () => undefined;
  leaseLost = false;
  /** How many reports fail before one is taken. */
  failingReports = 0;

  private handedOut = false;
  private readonly done: () => void;
  readonly settled: Promise<void>;

  constructor() {
    let done = () => {};
    this.settled = new Promise((resolve) => (done = resolve));
    this.done = done;
  }

  readonly transport = createRouterTransport(({ service }) => {
    service(WorkerService, {
      pollTasks: async (_, { signal }) => {
        if (!this.handedOut) {
          this.handedOut = true;
          const task = { id: "tok.1", lease: "1.tok", instanceId: "wfi.1", step: "double", activity: "double", attempt: 1, context: encode(21) };
          return { tasks: [create(TaskSchema, task)] };
        }
        await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
        return {};
      },
      reportSteps: (request) => {
        this.reports.push(request);
        if (this.failingReports-- > 0) {
          throw new ConnectError("the shard is away", Code.Unavailable);
        }
        this.done();
        return { outcomes: [{ taskId: "tok.1" }] };
      },
      failTask: (request) => {
        this.failures.push(request);
        this.done();
        return {};
      },
      heartbeat: (request) => {
        this.beats++;
        this.onBeat(request);
        const fault = { code: Code.Aborted, message: "lost", kind: { case: "leaseLost" as const, value: { taskId: "tok.1" } } };
        return { outcomes: [create(BeatOutcomeSchema, this.leaseLost ? { fault } : {})] };
      },
      releaseTasks: (request) => {
        this.releases.push(request);
        return {};
      },
    });
  });

  /** run runs a runner with the handler until `until` settles, and to its end. */
  async run(handler: Handler, until: Promise<unknown>): Promise<void> {
    const stop = new AbortController();
    const runner = new Runner(this.transport, {
      name: "test", queue: "q", workflow: "w", handlers: { double: handler }, concurrency: 2, leaseMs: 3_000, graceMs: 50,
    });
    const ended = runner.run(stop.signal);
    await until;
    stop.abort();
    await ended;
  }
}

/** aborted settles when the signal says stop. */
function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}

test("a result is reported until there is an answer", async () => {
  const server = new Server();
  server.failingReports = 2;
  await server.run(async (task) => 2 * (decode(task.context) as number), server.settled);
  assert.equal(server.reports.length, 3);
  const report = server.reports[2]?.reports[0];
  assert.equal(report?.lease, "1.tok");
  assert.equal(report?.outcome.case === "result" && decode(report.outcome.value), 42);
});

test("a failure is told, and whether trying again is of use", async () => {
  for (const error of [new Error("not now"), new Refused("never")]) {
    const server = new Server();
    await server.run(() => Promise.reject(error), server.settled);
    const [failure] = server.failures;
    assert.equal(failure?.failure?.message, error.message);
    assert.equal(failure?.nonRetryable, error instanceof Refused);
    assert.equal(server.reports.length, 0);
  }
});

test("a lease is kept as long as the handler works", async () => {
  const server = new Server();
  const beaten = new Promise<void>((resolve) => (server.onBeat = () => server.beats === 2 && resolve()));
  await server.run(async () => void await beaten, server.settled);
  assert.equal(server.reports.length, 1);
});

test("a handler whose lease is lost is told to stop, and nothing is reported", async () => {
  const server = new Server();
  server.leaseLost = true;
  let told = () => {};
  const stopped = new Promise<void>((resolve) => (told = resolve));
  await server.run(async (_, signal) => {
    await aborted(signal);
    told();
    throw new Error("stopped");
  }, stopped);
  assert.deepEqual([server.reports.length, server.failures.length, server.releases.length], [0, 0, 0]);
});

test("what is not finished within the grace is handed back", async () => {
  const server = new Server();
  let begun = () => {};
  const began = new Promise<void>((resolve) => (begun = resolve));
  await server.run(async (_, signal) => {
    begun();
    await aborted(signal);
    throw new Error("stopped");
  }, began);
  assert.deepEqual(server.releases[0]?.tasks.map(({ lease }) => lease), ["1.tok"]);
  assert.deepEqual([server.reports.length, server.failures.length], [0, 0]);
});
