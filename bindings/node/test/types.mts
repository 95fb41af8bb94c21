// Compiled by tsc, never run: what the types promise and refuse.
import { Model, LlamaError, version, type Event, type Message, type Sequence, type Stats } from 'llamabi';
import all from 'llamabi';

export async function use(): Promise<void> {
  await using model = await Model.open({ ckptDir: 'x', maxSeqLen: 64, weightsDtype: 'bf16', onLog: (level, m) => void (level === 'warn' && m) });
  await (await Model.open('x', { maxSeqLen: 64 })).textCompletion('a', { stop: '\n' });
  await (await Model.open(new URL('file:///x'), { adapters: ['y', { dir: new URL('file:///z') }] })).addAdapter(new URL('file:///y'));
  const one: Sequence = await model.textCompletion('a', { signal: AbortSignal.timeout(1), stop: ['\n'], seed: 1n });
  const many: Sequence[] = await model.textCompletion(['a', 'b']);
  const answer: Sequence = await model.chatCompletion([{ role: 'user', content: 'a' }]);
  const tokens: Sequence = await model.generate(model.encode('a', { bos: true }));
  const batches: Sequence[] = await model.generate([[1, 2], new Int32Array([1])]);
  const left: Sequence[] = await model.compress(['a', { text: 'b', kind: 'question' }], { rate: 0.3 });
  // Lists that nobody may change, and messages and variables of interfaces.
  const lists = { devices: [0], adapters: ['x', { dir: 'y', scale: 0.5 }] } as const;
  await Model.open('x', lists);
  await model.textCompletion('a', { stop: ['b', 'c'] as const, logitBias: [[1, -1]] as const });
  interface Variables { enable_thinking: boolean }
  const history: Message[] = [];
  const variables: Variables = { enable_thinking: true };
  await model.chat({ messages: [...history, { role: 'tool', content: 'a', tool_call_id: 'b' }], variables });
  const stream = model.stream('a');
  for await (const ev of stream) {
    const event: Event = ev;
    if (event.type === 'token') event.top.map((a) => a.logprob.toFixed(1));
    else if (event.type === 'finish') {
      const stats: Stats = event.stats;
      event.finishReason.toUpperCase() + stats.cachedTokens.toFixed();
    } else event.finishReason?.toUpperCase() ?? event.score.toFixed();
  }
  const name: string = version + all.version + new LlamaError(-3, 'x').code;
  void [one, many, answer, left, tokens, batches, name];

  // @ts-expect-error: an option that does not exist
  await model.textCompletion('a', { temprature: 1 });
  // @ts-expect-error: a promise, which is no answer
  await model.textCompletion('a', { shouldStop: async () => false });
  // @ts-expect-error: a role that does not exist
  await model.chatCompletion([{ role: 'robot', content: 'a' }]);
  // @ts-expect-error: not a dtype
  await Model.open({ ckptDir: 'x', weightsDtype: 'f64' });
  // @ts-expect-error: the directory twice
  await Model.open('x', { ckptDir: 'y' });
  // @ts-expect-error: a content that is no text
  await model.chat({ messages: [{ role: 'user', content: 5 }] });
  // @ts-expect-error: an option that encode does not have
  model.encode('a', { addBos: true });
  // @ts-expect-error: use Model.open
  new Model();
  // @ts-expect-error: a finish event has no token
  for await (const ev of stream) if (ev.type === 'finish') ev.token;
}
