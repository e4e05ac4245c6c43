// nsqjs as a program; what it says and takes: lines.py.
const fs = require('fs')
const {Reader, Writer} = require('nsqjs')

const say = (event, more = {}, then) => process.stdout.write(JSON.stringify({event, ...more}) + '\n', then)
const role = process.argv[2]
const config = JSON.parse(process.argv[3])
const options = {heartbeatInterval: config.heartbeat_s, deflate: config.deflate, snappy: config.snappy}
if (config.tls_ca) Object.assign(options, {tls: true, ca: fs.readFileSync(config.tls_ca)})
if (config.msg_timeout_ms) options.messageTimeout = config.msg_timeout_ms

let going = true
const end = () => setTimeout(() => say('closed', {}, () => process.exit(0)), 100)

function produce() {
  const [host, port] = config.nsqd.split(':')
  const writer = new Writer(host, Number(port), options)
  writer.on('ready', () => say('ready'))
  writer.on('error', (error) => say('error', {why: error.message}))
  writer.on('closed', () => going && say('lost'))
  writer.connect()
  const stored = (error) => (error ? say('failed', {why: error.message}) : say('stored'))
  return (order) => {
    if (order.op === 'close') {
      writer.close()
      return end()
    }
    const bodies = order.bodies.map((body) => Buffer.from(body, 'latin1'))
    if (order.op === 'dpub') writer.deferPublish(order.topic, bodies, order.delay_ms, stored)
    else writer.publish(order.topic, order.op === 'mpub' ? bodies : bodies[0], stored)
  }
}

function consume() {
  Object.assign(options, {maxInFlight: config.in_flight, lookupdPollInterval: 1})
  if (config.lookupd) options.lookupdHTTPAddresses = [config.lookupd]
  else options.nsqdTCPAddresses = [config.nsqd]
  const reader = new Reader(config.topic, config.channel, options)
  const held = new Map()
  reader.on('ready', () => say('ready'))
  reader.on('error', (error) => say('error', {why: error.message}))
  reader.on('nsqd_closed', () => going && say('lost'))
  reader.on('message', (message) => {
    const {id, attempts} = message
    say('message', {id, attempts, timestamp_ns: Number(message.timestamp), body: message.body.toString('latin1')})
    if (config.auto) message.finish()
    else held.set(`${id} ${attempts}`, message)
  })
  reader.connect()
  return (order) => {
    if (order.op === 'close') {
      reader.close()
      return end()
    }
    const message = held.get(`${order.id} ${order.attempts}`)
    if (order.op === 'finish') message.finish()
    else if (order.op === 'requeue') message.requeue(order.delay_ms, false)
    else message.touch()
  }
}

const take = role === 'produce' ? produce() : consume()
let rest = ''
const close = () => {
  if (!going) return
  going = false
  take({op: 'close'})
}
process.stdin.on('data', (data) => {
  const lines = (rest + data).split('\n')
  rest = lines.pop()
  for (const order of lines.map((line) => JSON.parse(line))) order.op === 'close' ? close() : take(order)
})
process.stdin.on('end', close)
