import { render } from "preact";
import "../shared/base.css";
import { Connected } from "../shared/connected";
import type { EnvironmentInterface } from "./game";
import { PlayPage } from "./play_page";

render(
  <Connected<EnvironmentInterface> path="interface">
    {(environment, askForToken) => <PlayPage environment={environment} onTokenNeeded={askForToken} />}
  </Connected>,
  document.getElementById("app")!,
);
