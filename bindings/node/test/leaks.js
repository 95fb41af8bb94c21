'use strict';
// For AddressSanitizer's leak check at exit: a bit of everything, then nothing must be left.
const s = require('./support.js');

(async () => {
  for (let i = 0; i < 5; i++) {
    const model = await s.demo({ onLog() {}, onProgress() {} });
    for (let k = 0; k < 10; k++) {
      await model.textCompletion(['Once', 'Twice'], { maxGenLen: 2, logprobs: true, topLogprobs: 3, stop: ['x'] });
      await model.generate([model.encode('Once', { bos: true }), [1, 2]], { maxGenLen: 2 });
      await model.chatCompletion([{ role: 'user', content: 'hi' }], { signal: AbortSignal.abort() });
      for await (const event of model.stream([[{ role: 'user', content: '[INST]' }], [{ role: 'user', content: 'hi' }]], { maxGenLen: 2 }));
      for await (const event of model.stream('Once')) if (event.text) break;
      await s.failure(model.textCompletion('a', { temperature: -1 }));
      await s.failure(model.textCompletion(['a', 7], { stop: ['x'] }));
    }
    model.tokenBytes(5);
    model.decode(model.encodeDialog([{ role: 'user', content: 'hi' }]));
    await s.failure(s.demo({ ckptDir: '/none', onLog() {}, onProgress() {} }));
    if (i % 2) await model.close();
  }
  gc();
  await s.sleep(10);
  gc();
})();
