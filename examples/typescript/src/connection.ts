import type { Interceptor, Transport } from "@connectrpc/connect";
import { createConnectTransport, Http2SessionManager } from "@connectrpc/connect-node";

/** Connection is one HTTP/2 connection to a router, on which all calls share. Close it, or the process does not end. */
export interface Connection {
  readonly transport: Transport;
  close(): void;
}

/** connect goes to WIGGLE_SERVER with the key in WIGGLE_API_KEY, if there is one. */
export function connect(env: NodeJS.ProcessEnv = process.env): Connection {
  const baseUrl = env["WIGGLE_SERVER"] ?? "http://127.0.0.1:8420";
  const key = env["WIGGLE_API_KEY"];
  const sessionManager = new Http2SessionManager(baseUrl);
  return {
    transport: createConnectTransport({
      baseUrl,
      httpVersion: "2",
      sessionManager,
      interceptors: key ? [authorization(key)] : [],
    }),
    close: () => sessionManager.abort(),
  };
}

function authorization(key: string): Interceptor {
  return (next) => (request) => {
    request.header.set("Authorization", `Bearer ${key}`);
    return next(request);
  };
}
