// Drives the published e2b package against what E2B_API_URL and
// E2B_SANDBOX_URL name. Prints one JSON line for each check.
import assert from 'node:assert/strict'
import {
  Sandbox, CommandExitError, TimeoutError, FileNotFoundError, InvalidArgumentError,
  NotFoundError, FileType, FilesystemEventType, AuthenticationError,
} from 'e2b'

const sbx = await Sandbox.create({ timeoutMs: 300_000 })
const enc = new TextEncoder()

async function until(what, ok, ms = 10_000) {
  const end = Date.now() + ms
  while (!(await ok())) {
    assert.ok(Date.now() < end, `${what}: not within ${ms} ms`)
    await new Promise((r) => setTimeout(r, 20))
  }
}

const checks = {
  async isRunning() {
    assert.equal(await sbx.isRunning(), true)
  },
  async run() {
    const seen = { out: '', err: '' }
    const r = await sbx.commands.run('echo out; echo err >&2', {
      onStdout: (d) => { seen.out += d }, onStderr: (d) => { seen.err += d },
    })
    assert.deepEqual([r.exitCode, r.stdout, r.stderr, r.error], [0, 'out\n', 'err\n', undefined])
    assert.deepEqual(seen, { out: 'out\n', err: 'err\n' })
  },
  async exitCode() {
    await assert.rejects(sbx.commands.run('echo x; exit 42'), (e) =>
      e instanceof CommandExitError && e.exitCode === 42 && e.stdout === 'x\n' && e.error === 'exit status 42')
  },
  async nonASCII() {
    const text = 'žluťoučký kůň, 日本語, 🐎'
    const r = await sbx.commands.run(`echo '${text}'; printf '%s' "$T"`, { envs: { T: text } })
    assert.equal(r.stdout, `${text}\n${text}`)
    const big = await sbx.commands.run(`for i in $(seq 20000); do echo '🐎ž'; done`)
    assert.equal(big.stdout, '🐎ž\n'.repeat(20000))
  },
  async cwdAndUser() {
    const r = await sbx.commands.run('pwd; id -un', { cwd: '/tmp', user: 'root' })
    assert.equal(r.stdout, '/tmp\nroot\n')
    await assert.rejects(sbx.commands.run('true', { cwd: '/no/such' }), (e) =>
      e instanceof InvalidArgumentError && e.message.includes("cwd '/no/such' does not exist"))
    await assert.rejects(sbx.commands.run('true', { user: 'nobody-here' }), AuthenticationError)
  },
  async background() {
    const h = await sbx.commands.run('echo begun; sleep 300', { background: true })
    const list = await sbx.commands.list()
    const p = list.find((p) => p.pid === h.pid)
    assert.deepEqual([p.cmd, p.args], ['/bin/bash', ['-l', '-c', 'echo begun; sleep 300']])
    await until('output', () => h.stdout === 'begun\n')
    assert.equal(await h.kill(), true)
    await assert.rejects(h.wait(), (e) => e instanceof CommandExitError && e.exitCode === -1 && e.error === 'signal: killed')
    assert.equal(await sbx.commands.kill(h.pid), false)
    assert.equal(await sbx.commands.kill(999999), false)
    assert.equal((await sbx.commands.list()).length, 0)
  },
  async disconnectAndConnect() {
    const h = await sbx.commands.run('echo one; read x; echo two', { background: true, stdin: true })
    await until('output', () => h.stdout === 'one\n')
    await h.disconnect()
    const again = await sbx.commands.connect(h.pid)
    await sbx.commands.sendStdin(h.pid, 'go\n')
    const r = await again.wait()
    assert.deepEqual([r.exitCode, r.stdout], [0, 'two\n'])
    await assert.rejects(sbx.commands.connect(999999), NotFoundError)
  },
  async stdin() {
    const h = await sbx.commands.run('cat; echo over', { background: true, stdin: true })
    await h.sendStdin('text ž ')
    await h.sendStdin(enc.encode('bytes\n'))
    await h.closeStdin()
    const r = await h.wait()
    assert.equal(r.stdout, 'text ž bytes\nover\n')
  },
  async timeout() {
    await assert.rejects(sbx.commands.run('sleep 300', { timeoutMs: 1000 }), TimeoutError)
    await until('the command has been killed', async () => (await sbx.commands.list()).length === 0)
  },
  async pty() {
    let out = ''
    const h = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => { out += new TextDecoder().decode(d) }, timeoutMs: 0 })
    await sbx.pty.sendInput(h.pid, enc.encode('stty size; echo $TERM\n'))
    await until('size', () => out.includes('24 80') && out.includes('xterm-256color'))
    await sbx.pty.resize(h.pid, { cols: 100, rows: 30 })
    await sbx.pty.sendInput(h.pid, enc.encode('stty size\n'))
    await until('new size', () => out.includes('30 100'))
    await sbx.pty.sendInput(h.pid, enc.encode('exit\n'))
    assert.equal((await h.wait()).exitCode, 0)
    assert.equal(await sbx.pty.kill(h.pid), false)
  },
  async writeAndRead() {
    const info = await sbx.files.write('dir/sub/ž 🐎.txt', 'text ž 🐎')
    assert.deepEqual([info.path, info.name, info.type], ['/home/user/dir/sub/ž 🐎.txt', 'ž 🐎.txt', 'file'])
    assert.equal(await sbx.files.read('dir/sub/ž 🐎.txt'), 'text ž 🐎')
    assert.equal(await sbx.files.read('/home/user/dir/sub/ž 🐎.txt', { gzip: true }), 'text ž 🐎')
    const bytes = Uint8Array.from({ length: 300_000 }, (_, i) => i * 7)
    await sbx.files.write('bytes', bytes.buffer)
    assert.deepEqual(await sbx.files.read('bytes', { format: 'bytes' }), bytes)
    assert.equal((await (await sbx.files.read('bytes', { format: 'blob' })).arrayBuffer()).byteLength, bytes.length)
    let n = 0
    for await (const c of await sbx.files.read('bytes', { format: 'stream' })) n += c.length
    assert.equal(n, bytes.length)
    await sbx.files.write('empty', '')
    assert.equal(await sbx.files.read('empty'), '')
  },
  async writeMany() {
    const out = await sbx.files.write([{ path: 'many/a', data: '1' }, { path: '/tmp/many/b', data: '2' }])
    assert.deepEqual(out.map((f) => f.path), ['/home/user/many/a', '/tmp/many/b'])
    assert.equal(await sbx.files.read('/tmp/many/b'), '2')
  },
  async writeStreams() {
    for (const opts of [{ gzip: true }, { useOctetStream: true }]) {
      await sbx.files.write('octets', 'x'.repeat(100_000), opts)
      assert.equal(await sbx.files.read('octets'), 'x'.repeat(100_000))
    }
    const stream = new ReadableStream({ start(c) { c.enqueue(enc.encode('from ')); c.enqueue(enc.encode('a stream')); c.close() } })
    await sbx.files.write('streamed', stream)
    assert.equal(await sbx.files.read('streamed'), 'from a stream')
  },
  async metadata() {
    const info = await sbx.files.write('meta', 'x', { metadata: { kind: 'Test', owner: 'me' } })
    assert.deepEqual(info.metadata, { kind: 'Test', owner: 'me' })
    assert.deepEqual((await sbx.files.getInfo('meta')).metadata, { kind: 'Test', owner: 'me' })
    await sbx.files.write('meta', 'y')
    assert.equal((await sbx.files.getInfo('meta')).metadata, undefined)
  },
  async missing() {
    await assert.rejects(sbx.files.read('nope'), (e) => e instanceof FileNotFoundError && e.message.includes("path '/home/user/nope' does not exist"))
    await assert.rejects(sbx.files.read('/tmp'), InvalidArgumentError)
    await assert.rejects(sbx.files.list('/no/such'), FileNotFoundError)
    await assert.rejects(sbx.files.rename('no-such', 'other'), FileNotFoundError)
    await assert.rejects(sbx.files.read('x', { user: 'nobody-here' }), AuthenticationError)
    await sbx.files.remove('no-such')
  },
  async listAndInfo() {
    await sbx.commands.run('mkdir -p l/a/b && echo hi > l/f && chmod 640 l/f && ln -s f l/link && ln -s a l/dirlink && ln -s none l/dangling')
    const list = await sbx.files.list('l')
    assert.deepEqual(list.map((e) => [e.name, e.type]), [['a', FileType.DIR], ['dirlink', FileType.DIR], ['f', FileType.FILE], ['link', FileType.FILE]])
    assert.deepEqual((await sbx.files.list('l', { depth: 2 })).map((e) => e.path), ['/home/user/l/a', '/home/user/l/a/b', '/home/user/l/dirlink', '/home/user/l/f', '/home/user/l/link'])
    const f = await sbx.files.getInfo('l/f')
    assert.deepEqual([f.size, f.mode, f.permissions, f.owner, f.group, f.symlinkTarget], [3, 0o640, '-rw-r-----', 'user', 'user', undefined])
    assert.ok(Math.abs(Date.now() - f.modifiedTime.getTime()) < 600_000)
    const l = await sbx.files.getInfo('l/link')
    assert.deepEqual([l.mode, l.permissions, l.symlinkTarget], [0o640, 'Lrwxrwxrwx', '/home/user/l/f'])
  },
  async makeDirExistsRenameRemove() {
    assert.equal(await sbx.files.makeDir('made/of/three'), true)
    assert.equal(await sbx.files.makeDir('made/of/three'), false)
    assert.equal(await sbx.files.exists('made/of'), true)
    await sbx.files.write('made/f', 'x')
    await assert.rejects(sbx.files.makeDir('made/f'), InvalidArgumentError)
    const moved = await sbx.files.rename('made/f', 'made/new/g')
    assert.equal(moved.path, '/home/user/made/new/g')
    assert.deepEqual([await sbx.files.exists('made/f'), await sbx.files.exists('made/new/g')], [false, true])
    await sbx.files.remove('made')
    assert.equal(await sbx.files.exists('made'), false)
  },
  async watch() {
    await sbx.files.makeDir('watched')
    const events = []
    const h = await sbx.files.watchDir('watched', (e) => events.push(e), { recursive: true, includeEntry: true })
    await sbx.files.write('watched/é.txt', 'x')
    await until('create', () => events.some((e) => e.name === 'é.txt' && e.type === FilesystemEventType.CREATE))
    await until('write', () => events.some((e) => e.name === 'é.txt' && e.type === FilesystemEventType.WRITE && e.entry?.path === '/home/user/watched/é.txt'))
    await sbx.commands.run('mkdir watched/sub && sleep 0.2 && echo x > watched/sub/deep && chmod 600 watched/é.txt && mv watched/é.txt watched/moved && rm watched/moved')
    await until('below', () => events.some((e) => e.name === 'sub/deep'))
    for (const [name, type] of [['é.txt', FilesystemEventType.CHMOD], ['é.txt', FilesystemEventType.RENAME], ['moved', FilesystemEventType.CREATE], ['moved', FilesystemEventType.REMOVE]]) {
      await until(type, () => events.some((e) => e.name === name && e.type === type))
    }
    await h.stop()
    await assert.rejects(sbx.files.watchDir('none', () => {}), FileNotFoundError)
    await sbx.files.write('plain', 'x')
    await assert.rejects(sbx.files.watchDir('plain', () => {}), InvalidArgumentError)
  },
  async many() {
    const all = await Promise.all(Array.from({ length: 30 }, (_, i) => sbx.commands.run(`sleep 0.2; echo ${i}`)))
    assert.deepEqual(all.map((r) => r.stdout), Array.from({ length: 30 }, (_, i) => `${i}\n`))
  },
  async killed() {
    const h = await sbx.commands.run('echo up; sleep 300', { background: true })
    await until('output', () => h.stdout === 'up\n')
    assert.equal(await sbx.kill(), true)
    await assert.rejects(h.wait(), TimeoutError)
    assert.equal(await sbx.isRunning(), false)
    await assert.rejects(sbx.commands.run('true'))
  },
}

for (const [name, check] of Object.entries(checks)) {
  const began = Date.now()
  let error
  try {
    await check()
  } catch (e) {
    error = e?.stack ?? String(e)
  }
  console.log(JSON.stringify({ name, error, ms: Date.now() - began }))
}
process.exit(0)
