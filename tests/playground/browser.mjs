// Headless Chromium on the playground, and what all of its tests do there.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { createServer, request } from 'node:http';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

/** For what hangs, and more than a busy machine needs for anything else. */
const PATIENCE = 180_000;

export const launch = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM,
    headless: true,
    timeout: PATIENCE,
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });

/** A page that fails the test when the playground throws or complains; a refused request is no
 * complaint. */
export async function openPage(browser, url, { theme = 'light', width = 1280, height = 800 } = {}) {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme: theme });
  page.setDefaultTimeout(PATIENCE);
  page.troubles = [];
  page.on('pageerror', (error) => page.troubles.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error' && !/status of 4\d\d|ERR_(CONNECTION|INCOMPLETE|EMPTY)/.test(message.text())) page.troubles.push(message.text());
  });
  await page.goto(url);
  return page;
}

export async function post(url, path, body) {
  const response = await fetch(url + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  assert(response.ok, await response.clone().text());
  return response.json();
}

/** Runs every check, so that one failure does not hide the next; throws at the end if there was
 * one. */
export async function runAll(title, checks) {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`${title}: ${name} ok`);
    } catch (error) {
      failed++;
      console.log(`${title}: ${name} FAILED: ${error.message}`);
    }
  }
  assert.equal(failed, 0, `${failed} failed`);
}

export const bars = (page) =>
  page.$$eval('#next li', (rows) => rows.map((row) => ({ token: row.dataset.token, p: Number(row.dataset.p), out: row.firstChild.classList.contains('out') })));
export const slide = (page, id, value) =>
  page.$eval(`#${id}`, (slider, v) => { slider.value = v; slider.dispatchEvent(new Event('input')); }, String(value));
/** The bars are those of the text that is there. */
export const settled = (page) => page.waitForFunction(() => document.querySelector('#next').ariaBusy === 'false');
export const idle = (page) => page.waitForFunction(() => document.querySelector('#stop').disabled && document.querySelector('#status').textContent !== '');
/** What moves or fades has come to where it is drawn. */
export const still = (page) =>
  page.evaluate(() => Promise.all(document.getAnimations().filter((one) => one instanceof CSSTransition).map((one) => one.finished.catch(() => {}))));
export const status = (page) => page.textContent('#status');

export function shooter(folder) {
  mkdirSync(folder, { recursive: true });
  return (page, name) => page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
}

/** The service through a proxy that passes `events` events of a stream, then waits for `go()`,
 * or ends with `cut()`. */
export async function holdingProxy(url, events) {
  let held = null;
  const target = new URL(url);
  const proxy = createServer((req, res) => {
    const on = request({ host: target.hostname, port: target.port, path: req.url, method: req.method, headers: { ...req.headers, host: target.host } }, (answer) => {
      res.writeHead(answer.statusCode, answer.headers);
      let seen = 0;
      answer.on('data', (data) => {
        seen += data.toString().split('\n\n').length - 1;
        res.write(data);
        if (/event-stream/.test(answer.headers['content-type']) && seen >= events && held === null) {
          answer.pause();
          held = { answer, res };
        }
      });
      answer.on('end', () => res.end());
    });
    on.on('error', () => res.destroy());
    res.on('close', () => on.destroy());
    req.pipe(on);
  });
  await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${proxy.address().port}`,
    isHolding: () => held !== null,
    go: () => held.answer.resume(),
    cut: () => held.res.destroy(),
    close: () => {
      proxy.closeAllConnections();
      proxy.close();
    },
  };
}
