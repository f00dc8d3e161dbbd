import { render } from "preact";
import { Brand } from "../shared/brand";
import "../shared/base.css";
import { Connected } from "../shared/connected";
import { ThemeButton } from "../shared/theme";
import "./api.css";
import { type OpenApi, listOperations } from "./openapi";
import { OperationCard } from "./operation_card";

function ApiPage({ document }: { document: OpenApi }) {
  return (
    <div class="api">
      <header class="top">
        <Brand title={document.info.title} subtitle="HTTP routes of this server. Sessions use the WebSocket /ws." />
        <nav class="row">
          <a href="./">Play</a>
          <a href="openapi.json">openapi.json</a>
          <ThemeButton />
        </nav>
      </header>
      <main class="stack">
        {listOperations(document).map((operation) => (
          <OperationCard key={`${operation.method} ${operation.path}`} operation={operation} />
        ))}
      </main>
    </div>
  );
}

render(
  <Connected<OpenApi> path="openapi.json">{(openapi) => <ApiPage document={openapi} />}</Connected>,
  document.getElementById("app")!,
);
