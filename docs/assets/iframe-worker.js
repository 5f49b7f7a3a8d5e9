/* Search on pages opened from the file system, where browsers refuse workers: the script runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.appendChild(frame)
      this.inside = frame.contentWindow
      const load = (source) =>
        new Promise((done, failed) => {
          const script = this.inside.document.createElement("script")
          Object.assign(script, { src: source, onload: done, onerror: failed })
          this.inside.document.head.appendChild(script)
        })
      this.inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = load(String(url))
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
