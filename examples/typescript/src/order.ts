/** Order is the context of the process, as far as we look at it. */
export interface Order {
  number?: string;
  customer: { name: string; city?: string };
  lines: { sku: string; quantity: number }[];
  shipment?: Shipment;
  total_cents?: number;
}

/** Shipment is what the branch `shipping` brings. */
export interface Shipment {
  warehouse: string;
  parcels: number;
  tracking?: string;
}
