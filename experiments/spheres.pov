// N spheres at random, for POV-Ray: povray spheres.pov Declare=N=1000000. Most of their memory is read once and then
// only where a ray passes.
#version 3.7;
global_settings { assumed_gamma 1 }
camera { location <0, 0, -60> look_at <0, 0, 0> }
light_source { <50, 80, -100> rgb 1 }
#declare R = seed(1);
#for (I, 1, N)
  sphere {
    <rand(R) * 60 - 30, rand(R) * 45 - 22, rand(R) * 60 - 20>, 0.05 + rand(R) * 0.1
    pigment { rgb <rand(R), rand(R), rand(R)> }
  }
#end
