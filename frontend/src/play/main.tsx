import { render } from "preact";
import "../shared/base.css";

function App() {
  return (
    <main class="page">
      <h1>Play</h1>
    </main>
  );
}

render(<App />, document.getElementById("app")!);
