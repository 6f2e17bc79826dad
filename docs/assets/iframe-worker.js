// SPDX-License-Identifier: Apache-2.0
// Browsers start no worker for a page that is opened as a file. The search of such pages runs in a hidden frame instead.

if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentDocument;
      const script = inside.createElement("script");
      this.frame = frame;
      this.loaded = new Promise((resolve) => {
        script.onload = resolve;
      });
      frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      script.src = address;
      inside.body.append(script);
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
