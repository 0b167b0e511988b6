// uPlot stands beside the modules as a script of its own, and defines a global.
/// <reference path="./vendor/uplot-1.6.32/uPlot.d.ts" />
