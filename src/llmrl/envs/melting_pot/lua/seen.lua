--[[ A scene component that tells what players see piece by piece instead of as pictures.

For each player <i>.SEEN: the sprite in each layer of each cell of its view, turned
the way the player faces, as the picture is. WORLD.SPRITES: the names of all sprites,
which the numbers refer to.
]]

local args = require 'common.args'
local class = require 'common.class'

local meltingpot = 'meltingpot.lua.modules.'
local component = require(meltingpot .. 'component')
local component_registry = require(meltingpot .. 'component_registry')

local Seen = class.Class(component.Component)

function Seen:__init__(kwargs)
  kwargs = args.parse(kwargs, {
      {'name', args.default('Seen')},
  })
  Seen.Base.__init__(self, kwargs)
end

function Seen:addObservations(tileSet, world, observations)
  local names = table.concat(world:spriteNames(), ',')
  observations[#observations + 1] = {
      name = 'WORLD.SPRITES',
      type = 'String',
      shape = {},
      func = function(grid) return names end
  }
  local simulation = self.gameObject.simulation
  for _, object in pairs(simulation:getAvatarGameObjects()) do
    local config = object:getComponent('Avatar')._config
    local view = world:createView{
        left = config.view.left,
        right = config.view.right,
        forward = config.view.forward,
        backward = config.view.backward,
        centered = config.view.centered,
        set = tileSet,
    }
    local spec = view:observationSpec(tostring(config.index or config._index) .. '.SEEN')
    spec.func = function(grid)
      return view:observation{grid = grid, piece = object:getPiece()}
    end
    observations[#observations + 1] = spec
  end
end

component_registry.registerAllComponents{Seen = Seen}

return {Seen = Seen}
