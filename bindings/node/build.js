// Builds build/llamabi.node against the installed library; npm runs this at install. With --bundle
// the library is copied beside the addon, which then looks for it nowhere else.
// Read from the environment: CXX, CXXFLAGS, LDFLAGS, PKG_CONFIG, PKG_CONFIG_PATH.
'use strict';
const { spawnSync } = require('node:child_process');
const { copyFileSync, mkdirSync, readdirSync } = require('node:fs');
const { join } = require('node:path');

const words = (text) => (text ?? '').split(/\s+/).filter(Boolean);

function fail(sentence) {
  console.error(`llamabi: ${sentence}`);
  process.exit(1);
}

function pkgConfig(...args) {
  const command = process.env.PKG_CONFIG || 'pkg-config';
  const ran = spawnSync(command, [...args, 'llamabi'], { encoding: 'utf8' });
  if (ran.error) fail(`${command} cannot be run (Debian: apt-get install pkg-config)`);
  if (ran.status !== 0) {
    fail(
      `the library libllamabi is not installed where pkg-config looks. Install it (in llamabi's ` +
        `source: make install PREFIX=/usr/local), and for a prefix of your own set ` +
        `PKG_CONFIG_PATH=PREFIX/lib/pkgconfig.\n${ran.stderr.trim()}`
    );
  }
  return ran.stdout.trim();
}

const source = join(__dirname, 'src');
const output = join(__dirname, 'build');
const cflags = words(pkgConfig('--cflags'));
const libs = words(pkgConfig('--libs'));
const libdir = pkgConfig('--variable=libdir');
const bundle = process.argv.includes('--bundle');
// The loader looks into LD_LIBRARY_PATH, then beside the addon, then where the library is now.
const runpath = bundle ? '$ORIGIN' : ['$ORIGIN', libdir].join(':');

mkdirSync(output, { recursive: true });
const compiler = process.env.CXX || 'c++';
const args = [
  '-std=c++17', '-O2', '-Wall', '-Wextra', '-shared', '-fPIC', '-fvisibility=hidden', '-pthread',
  '-DNAPI_VERSION=8', '-I' + require('node-api-headers').include_dir,
  ...cflags, ...words(process.env.CXXFLAGS),
  ...readdirSync(source).filter((name) => name.endsWith('.cc')).map((name) => join(source, name)),
  '-o', join(output, 'llamabi.node'),
  // now: a library that lacks a function is an error of require(), not the end of the process
  // later.
  '-Wl,-z,now', '-Wl,--enable-new-dtags', '-Wl,-rpath,' + runpath,
  ...words(process.env.LDFLAGS), ...libs,
];
const ran = spawnSync(compiler, args, { stdio: 'inherit' });
if (ran.error) fail(`${compiler} cannot be run (Debian: apt-get install g++)`);
if (ran.status !== 0) fail(`${compiler} failed, see above`);
if (bundle) {
  const library = readdirSync(libdir).find((name) => /^libllamabi\.so\.\d+$/.test(name));
  copyFileSync(join(libdir, library), join(output, library));
}
