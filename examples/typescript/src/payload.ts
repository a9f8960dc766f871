import { create } from "@bufbuild/protobuf";

import { PayloadSchema, type Payload } from "./gen/wiggle/v1/payload_pb.js";

/**
 * decode reads a payload that holds JSON. What comes from elsewhere has no type: the caller checks it. Integers above 2^53
 * lose digits in JavaScript; what must keep them belongs in strings.
 */
export function decode(payload: Payload | undefined): unknown {
  if (payload === undefined || payload.data.length === 0) {
    return null;
  }
  if (payload.contentType !== "" && payload.contentType !== "application/json") {
    throw new TypeError(`a payload of type ${payload.contentType} is not JSON`);
  }
  return JSON.parse(new TextDecoder().decode(payload.data));
}

/** encode writes a value as JSON. */
export function encode(value: unknown): Payload {
  return create(PayloadSchema, { data: new TextEncoder().encode(JSON.stringify(value ?? null)) });
}
