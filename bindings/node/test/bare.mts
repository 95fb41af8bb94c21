// Compiled by tsc without @types/node and without the DOM, never run.
import { Model, type Signal, type Sequence } from 'llamabi';

export async function use(signal: Signal): Promise<Sequence> {
  const model = await Model.open('x', { maxUnreadMs: Infinity, stallMemoryBytes: 1n, signal });
  const stream = model.stream('a', { signal });
  if (!signal.aborted) for await (const event of stream) void (event.type === 'finish' && event.finishReason === 'unread');
  await stream[Symbol.asyncDispose]();
  const kernels: boolean = model.info().gpuKernels;
  await model[Symbol.asyncDispose]();
  // @ts-expect-error: not a signal
  return kernels ? model.textCompletion('a') : model.textCompletion('a', { signal: {} });
}
