import 'uplot/dist/uPlot.min.css';
import './frame.css';
import './view.css';
import './picker.css';
import './lab.css';
