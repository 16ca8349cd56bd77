(() => {
  "use strict";
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const places = [...document.querySelectorAll("[data-plot]")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a8a8a"];
  const onDark = ["#56B4E9", "#FF9B5C", "#4fd1a5", "#e6a3c8", "#f0b849", "#9ad0f5", "#a8a8a8"];
  // Width of A4 less its margins, in CSS pixels.
  const PAPER = 680;
  // Plotly reads texts as HTML of its own.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const cut = (text) => (text.length > 28 ? text.slice(0, 27) + "…" : text);
  // Two names that begin alike must not become one.
  const labels = (names) => {
    const texts = names.map(String), short = texts.map(cut);
    return (new Set(short).size === new Set(texts).size ? short : texts).map(plain);
  };
  const faded = (colour) => colour + "33";

  function traces(plot, x, palette, ink) {
    if (plot.kind === "heat") {
      return [{
        type: "heatmap", x, y: labels(plot.series.map((s) => s.name)), z: plot.series.map((s) => s.y),
        colorscale: "Cividis", reversescale: true, xgap: 1, ygap: 1, hoverongaps: false,
        texttemplate: x.length <= 16 ? "%{z:.2f}" : "",
        colorbar: { title: { text: plain(plot.y_title), side: "right" }, thickness: 12, outlinewidth: 0 },
        hovertemplate: "%{y}<br>" + plain(plot.x_title) + " %{x}: %{z:.3g}<extra></extra>",
      }];
    }
    return plot.series.flatMap((s, i) => {
      const colour = palette[i % palette.length];
      const common = { name: plain(s.name), x, y: s.y, showlegend: plot.series.length > 1 };
      const ends = s.low && s.high;
      if (plot.kind === "bars") {
        return [{
          ...common, type: "bar", marker: { color: colour },
          error_y: ends ? {
            type: "data", symmetric: false, color: ink, thickness: 1.5, width: 4,
            array: s.y.map((y, j) => (y === null || s.high[j] === null ? null : s.high[j] - y)),
            arrayminus: s.y.map((y, j) => (y === null || s.low[j] === null ? null : y - s.low[j])),
          } : undefined,
        }];
      }
      const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: String(i) };
      const band = ends ? [{ ...edge, y: s.low }, { ...edge, y: s.high, fill: "tonexty", fillcolor: faded(colour) }] : [];
      return [...band, {
        ...common, type: "scatter", legendgroup: String(i), line: { color: colour, width: 2 }, connectgaps: false,
        // A lone value has no line to be seen by.
        mode: x.length > 60 && s.y.filter((value) => value !== null).length > 20 ? "lines" : "lines+markers",
      }];
    });
  }

  function draw(place, paper) {
    const plot = plots[Number(place.dataset.plot)];
    const night = dark.matches && !paper;
    const ink = night ? "#e6edf3" : "#1b1f24";
    const line = night ? "#343c45" : "#d0d7de";
    const named = plot.kind !== "lines" || plot.x.some((value) => typeof value === "string");
    const x = named ? labels(plot.x) : plot.x;
    const heat = plot.kind === "heat";
    const axis = { showgrid: !heat, gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true };
    const mark = plot.mark === null ? [] : [plot.mark];
    const layout = {
      height: heat ? 130 + 34 * plot.series.length : 360,
      width: paper ? PAPER : undefined,
      autosize: !paper,
      margin: { l: 60, r: 20, t: 16, b: 50 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", color: ink, size: 13 },
      barmode: "group", bargap: 0.3, colorway: night ? onDark : colours,
      xaxis: { ...axis, title: { text: plain(plot.x_title) }, type: named ? "category" : undefined },
      yaxis: {
        ...axis, title: heat ? undefined : { text: plain(plot.y_title) }, type: heat ? "category" : undefined,
        autorange: heat ? "reversed" : true, rangemode: plot.kind === "bars" ? "tozero" : "normal",
      },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      shapes: mark.map((y) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: ink, width: 1.5, dash: "dash" },
      })),
      annotations: mark.map((y) => ({
        xref: "paper", x: 1, xanchor: "right", y, yanchor: "bottom", showarrow: false,
        bgcolor: night ? "#11151acc" : "#ffffffcc", text: "limit " + Number(y.toPrecision(3)),
      })),
      hoverlabel: { namelength: -1 },
    };
    const palette = night ? onDark : colours;
    return Plotly.react(place, traces(plot, x, palette, ink), layout, { responsive: !paper, displaylogo: false, displayModeBar: false });
  }

  const all = (paper) => places.forEach((place) => draw(place, paper));
  if (typeof Plotly === "undefined") return;
  all(false);
  places.forEach((place) => place.parentElement.querySelector("details").removeAttribute("open"));
  dark.addEventListener("change", () => all(false));
  addEventListener("beforeprint", () => all(true));
  addEventListener("afterprint", () => all(false));
})();
