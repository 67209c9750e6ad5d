// Reporter of Node's test runner: a line for each test, with what came of it.
export default async function* report(events) {
  for await (const { type, data } of events) {
    if (type === "test:pass" && data.details.type !== "suite") {
      yield `${data.skip === undefined ? "passed" : "skipped"}\t${data.name}\n`;
    } else if (type === "test:fail") {
      yield `failed\t${data.name}\n`;
      console.log(data.name, data.details.error);
    }
  }
}
