import { Prose } from "../shared/prose";

/** The documentation of an environment, without the description, which is its first line. */
export function About(props: { documentation: string; description: string }) {
  const sections = parseSections(props.documentation.trim().replace(props.description, ""));
  if (sections.length === 0) return null;
  return (
    <details class="card" open>
      <summary>
        <h2>About</h2>
      </summary>
      <div class="about">
        {sections.map(({ title, paragraphs }, index) => (
          <section key={index}>
            {title && <h3>{title}</h3>}
            {paragraphs.map(({ term, text }, number) => (
              <p key={number}>
                {term && <code>{term}</code>}
                {term && ": "}
                <Prose text={text} />
              </p>
            ))}
          </section>
        ))}
      </div>
    </details>
  );
}

interface Paragraph {
  /** What the paragraph describes, such as an argument; empty for plain text. */
  term: string;
  text: string;
}

interface Section {
  title: string;
  paragraphs: Paragraph[];
}

const TITLE = /^([A-Z][\w ]*):$/;
const TERM = /^(\w+(?:\([^)]*\)|(?:, \w+)+)?): (.*)$/;

/** Split a docstring into titled sections, and undo its line breaks within paragraphs. */
export function parseSections(documentation: string): Section[] {
  const sections: Section[] = [{ title: "", paragraphs: [] }];
  let joins = false;
  for (const line of documentation.split("\n")) {
    const current = sections[sections.length - 1]!;
    const title = TITLE.exec(line);
    const text = line.trim();
    const term = current.title && /^ {4}\S/.test(line) ? TERM.exec(text) : null;
    if (title) {
      sections.push({ title: title[1]!, paragraphs: [] });
      joins = false;
    } else if (text === "") {
      joins = false;
    } else if (joins && !term) {
      current.paragraphs[current.paragraphs.length - 1]!.text += ` ${text}`;
    } else {
      current.paragraphs.push({ term: term?.[1] ?? "", text: term?.[2] ?? text });
      joins = true;
    }
  }
  return sections.filter(({ title, paragraphs }) => title || paragraphs.length > 0);
}
